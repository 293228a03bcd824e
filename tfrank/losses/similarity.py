"""The cosine similarity of unit vectors, with a gradient of one matrix product instead of two."""

import tensorflow as tf


def cosine_similarity(query: tf.Tensor, gallery: tf.Tensor) -> tf.Tensor:
    """S = query gallery^T.

    When `query` is the very same tensor as `gallery` (one device, one batch), S = E E^T and its
    gradient is (D + D^T) E: one product of size batch^2 x dim, where autodiff takes two.

    Args:
        query: `[queries, dim]` float, unit norm.
        gallery: `[gallery, dim]` float, unit norm.

    Returns:
        `[queries, gallery]` float in [-1, 1] up to rounding.
    """
    if query is gallery:
        return _self_similarity(query)
    return tf.matmul(query, gallery, transpose_b=True)


@tf.custom_gradient
def _self_similarity(embeddings):
    def gradient(upstream):
        return tf.matmul(upstream + tf.transpose(upstream), embeddings)

    return tf.matmul(embeddings, embeddings, transpose_b=True), gradient


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
