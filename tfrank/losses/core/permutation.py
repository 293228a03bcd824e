"""Rows in another order, and back."""

import tensorflow as tf


def permute(rows: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """`rows[order]` for a permutation; the gradient is a gather too, not a slow scatter.

    Args:
        rows: `[n, ...]`.
        order: `[n]` int32, every number below n once.
    """

    @tf.custom_gradient
    def permuted(rows):
        return tf.gather(rows, order), lambda upstream: tf.gather(upstream, inverse(order))

    return permuted(rows)


def inverse(order: tf.Tensor) -> tf.Tensor:
    """The inverse of a permutation `[n]` int32: `inverse(order)[order[i]] == i`."""
    places = tf.range(tf.size(order))
    return tf.tensor_scatter_nd_update(tf.zeros_like(order), order[:, None], places)
