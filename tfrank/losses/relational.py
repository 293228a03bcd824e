"""Relational knowledge distillation (Park et al., CVPR 2019, arXiv 1904.05068)."""

import keras
import numpy as np
import tensorflow as tf

from tfrank.losses.core.target_loss import TargetLoss


def relational_loss(embeddings: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The distance-wise loss of each image of a batch, `[batch]`, see `RelationalLoss`.

    Args:
        embeddings: `[batch, dim]` float, unit norm.
        targets: `[batch, any dim]` of the same dtype, unit norm.
    """
    difference = _relative_distances(embeddings) - _relative_distances(targets)
    size = tf.abs(difference)
    huber = tf.where(size <= 1, difference**2 / 2, size - 0.5)
    return tf.reduce_sum(huber, axis=1) / tf.cast(tf.maximum(tf.shape(huber)[0] - 1, 1), huber.dtype)


def _relative_distances(rows):
    """`[batch, batch]` distances, divided by the mean distance of two images."""
    squared = 2 - 2 * tf.matmul(rows, rows, transpose_b=True)
    # XLA cannot compile the gradient of `set_diag` where the size of the batch is open, as in `fit`.
    squared = tf.where(tf.eye(tf.shape(rows)[0], dtype=tf.bool), tf.zeros_like(squared), squared)
    # What rounding leaves of the distance of equal rows is none, and has no direction.
    apart = squared > 8 * np.finfo(rows.dtype.as_numpy_dtype).eps
    distances = tf.where(apart, tf.sqrt(tf.where(apart, squared, tf.ones_like(squared))), 0)
    number = tf.cast(tf.shape(rows)[0], rows.dtype)
    return tf.math.divide_no_nan(distances * number * (number - 1), tf.reduce_sum(distances))


@keras.saving.register_keras_serializable("tfrank")
class RelationalLoss(TargetLoss):
    """Teaches embeddings the distances between the images of a batch that another model sees.

        loss = mean over q of 1/(n - 1) sum over i != q of h(|x_q - x_i| / mu(x) - |t_q - t_i| / mu(t))

    x are the embeddings, t the targets, mu(.) the mean distance of two images of the batch, and h the Huber
    loss: d^2 / 2 for |d| <= 1, else |d| - 1/2. This is the distance-wise loss of the paper (RKD-D). The
    targets may have other dimensions than the embeddings, and need not be comparable with them: what is
    learnt is how far images are from each other, not where they are.

    Args:
        reduction: see `RankingLoss`.
        name: name of the loss.

    Shapes: targets `[batch, any dim]`, embeddings `[batch, dim]`, floats of any norm. Under Keras' `fit` the
    targets are what labels are elsewhere: `model.fit(images, targets)`.

    A batch of one image, or of equal images, gives 0.

    Reference: Park et al., Relational Knowledge Distillation, CVPR 2019, arXiv 1904.05068. Memory and time:
    a few matrices `[batch, batch]`.

    >>> loss = RelationalLoss()
    >>> targets = tf.constant([[1.0, 0], [0.8, 0.6], [0, 1.0]])
    >>> float(loss(targets, targets))
    0.0
    >>> round(float(loss(targets, [[1.0, 0], [0, 1.0], [0.8, 0.6]])), 4)
    0.212
    """

    def __init__(self, *, reduction: str | None = "mean", name: str = "relational"):
        super().__init__(relational_loss, reduction=reduction, name=name)
