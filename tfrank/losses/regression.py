"""Regression of another model's embeddings (as in Budnik and Avrithis, CVPR 2021, arXiv 2006.16331)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.target_loss import TargetLoss


def regression_loss(embeddings: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """1 - the cosine of each embedding and its target, `[batch]`.

    Args:
        embeddings: `[batch, dim]` float, unit norm.
        targets: `[batch, dim]` of the same dtype, unit norm.
    """
    if not targets.shape.is_compatible_with(embeddings.shape):
        raise checks.invalid("targets", f"shape {embeddings.shape}, as the embeddings", str(targets.shape))
    return 1 - tf.reduce_sum(embeddings * targets, axis=1)


@keras.saving.register_keras_serializable("tfrank")
class RegressionLoss(TargetLoss):
    """Moves each embedding to that of another model for the same image.

        loss = mean over q of 1 - <x_q, t_q>

    x are the embeddings and t the targets. Budnik and Avrithis (2006.16331) found this simplest of ways the
    best for queries of a small network against the index of its teacher.

    Args:
        reduction: see `RankingLoss`.
        name: name of the loss.

    Shapes: targets and embeddings `[batch, dim]`, floats of any norm. Under Keras' `fit` the targets are what
    labels are elsewhere: `model.fit(images, targets)`.

    >>> round(float(RegressionLoss()([[1.0, 0], [0, 2.0]], [[3.0, 0], [0.6, 0.8]])), 4)
    0.1
    """

    def __init__(self, *, reduction: str | None = "mean", name: str = "regression"):
        super().__init__(regression_loss, reduction=reduction, name=name)
