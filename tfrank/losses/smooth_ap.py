"""Smooth-AP: sigmoid-relaxed Average Precision (Brown et al., ECCV 2020, arXiv 2007.12163)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.grid_ranks import sigmoid_kernel
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import Positive, Scalar


def penalty(negatives: tf.Tensor, positives: tf.Tensor) -> tf.Tensor:
    """1 - precision at a positive, from the numbers of negatives and of other positives before it."""
    return negatives / (1 + positives + negatives)


def _kernel(block: Block, temperature):
    return sigmoid_kernel(penalty, temperature, positives=True)(block)


def smooth_ap_loss(
    *rows: tf.Tensor,
    temperature: Scalar,
    include_self: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - AP_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `SmoothAPLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    return score_rows(_kernel, *rows, temperature, include_self=include_self)


@keras.saving.register_keras_serializable("tfrank")
class SmoothAPLoss(RankingLoss):
    """One minus Average Precision, with the ranks' step function relaxed to a sigmoid.

        G(x) = sigmoid(x / temperature)                                          (eq. 6)
        N_i = sum over negatives j of G(s_j - s_i)
        P_i = sum over positives j != i of G(s_j - s_i)
        L_q = 1 - 1/|P| sum over positives i of (1 + P_i) / (1 + P_i + N_i)      (eq. 5, 7)

    Args:
        temperature: temperature of the sigmoid, positive. Default 0.01 (section 6.4). A smaller one is
            closer to AP, and gives a gradient to fewer pairs.
        include_self: whether the query also counts as a positive of itself, as in the published code.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval,
    ECCV 2020, arXiv 2007.12163. Memory: about three matrices `[batch, batch]`.

    >>> loss = SmoothAPLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.5833
    """

    @checks.arguments
    def __init__(
        self,
        temperature: Positive = 0.01,
        *,
        include_self: bool = False,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "smooth_ap",
    ):
        hyper_parameters = dict(temperature=temperature, include_self=include_self)
        super().__init__(
            smooth_ap_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
