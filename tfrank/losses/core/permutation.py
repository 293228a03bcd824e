"""Permutations of rows, and their inverses."""

import tensorflow as tf


def permute(rows: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """`rows[order]` for a permutation; its gradient is a gather too, not a slow scatter.

    Args:
        rows: `[n, ...]`.
        order: `[n]` int32, each of 0 to n - 1 once.
    """

    @tf.custom_gradient
    def permuted(rows):
        return tf.gather(rows, order), lambda upstream: tf.gather(upstream, inverse(order))

    return permuted(rows)


def inverse(order: tf.Tensor) -> tf.Tensor:
    """The inverse of a permutation `[n]` int32: `inverse(order)[order[i]] == i`."""
    places = tf.range(tf.size(order))
    return tf.tensor_scatter_nd_update(tf.zeros_like(order), order[:, None], places)
