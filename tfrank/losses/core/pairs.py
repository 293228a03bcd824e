"""Whole matrices of similarities, positives and negatives, for losses that are not a sum over rows."""

import tensorflow as tf


def pair_masks(
    query_labels: tf.Tensor, gallery_labels: tf.Tensor, self_index: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The positive mask and the negative mask, each `[queries, gallery]` bool.

    Positives have the query's label; the query's own row is neither a positive nor a negative.

    Args:
        query_labels: `[queries]` int64.
        gallery_labels: `[gallery]` int64.
        self_index: `[queries]` int32, the query's own gallery row, or -1.

    >>> positives, negatives = pair_masks(tf.constant([0, 1]), tf.constant([0, 1, 0]), tf.constant([0, -1]))
    >>> positives.numpy().tolist(), negatives.numpy().tolist()
    ([[False, False, True], [False, True, False]], [[False, True, False], [True, False, True]])
    """
    same = query_labels[:, None] == gallery_labels
    own = self_index[:, None] == tf.range(tf.size(gallery_labels))
    return same & ~own, ~same


def similarities(queries: tf.Tensor, gallery: tf.Tensor) -> tf.Tensor:
    """`[queries, gallery]` dot products. If both are the same tensor object, the gradient is one product."""
    if queries is not gallery:
        return tf.matmul(queries, gallery, transpose_b=True)

    @tf.custom_gradient
    def product(rows):
        # S = E E^T, so the gradient is one product with D + D^T; autodiff takes two.
        return tf.matmul(rows, rows, transpose_b=True), lambda D: tf.matmul(D + tf.transpose(D), rows)

    return product(queries)
