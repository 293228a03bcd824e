"""Threshold-Consistent Margin loss (Zhang et al., ICLR 2024, arXiv 2307.04047)."""

import functools

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core import scalars
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Number, Scalar
from tfrank.losses.core.violators import share_of_violator


def _kernel(block: Block, positive_margin, negative_margin, positive_share, negative_share):
    zero = tf.zeros_like(block.s)
    pull = tf.where(block.positive_mask, tf.nn.relu(positive_margin - block.s), zero)
    push = tf.where(block.negative_mask, tf.nn.relu(block.s - negative_margin), zero)
    losses = tf.reduce_sum(positive_share * pull + negative_share * push, axis=1)
    slopes = tf.where(pull > 0, zero - positive_share, tf.where(push > 0, zero + negative_share, zero))
    return losses, slopes


def _hard_positives(block: Block, positive_margin, _):
    hard = block.positive_mask & (block.s <= positive_margin)
    return tf.reduce_sum(tf.cast(hard, block.s.dtype), axis=1), tf.zeros_like(block.s)


def _hard_negatives(block: Block, _, negative_margin):
    hard = block.negative_mask & (block.s >= negative_margin)
    return tf.reduce_sum(tf.cast(hard, block.s.dtype), axis=1), tf.zeros_like(block.s)


def tcm_loss(
    *rows: tf.Tensor,
    positive_margin: Scalar,
    negative_margin: Scalar,
    positive_weight: Scalar,
    negative_weight: Scalar,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The part of each query in L_TCM, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `ThresholdConsistentMarginLoss`. Takes the arguments of `score_rows`; embeddings
    have unit norm.
    """
    margins = positive_margin, negative_margin
    # A row without another of its class has negative pairs.
    score = functools.partial(score_rows, needs_positives=False)
    shares = [
        scalars.tensor(weight, rows[1].dtype) * share_of_violator(*score(count, *rows, *margins))
        for weight, count in ((positive_weight, _hard_positives), (negative_weight, _hard_negatives))
    ]
    return score(_kernel, *rows, *margins, *shares)


@keras.saving.register_keras_serializable("tfrank")
class ThresholdConsistentMarginLoss(RankingLoss):
    """Makes one threshold of similarity fit all classes; a regulariser to add to another loss.

        L_TCM = w+ mean over positive pairs with s <= m+ of (m+ - s)
              + w- mean over negative pairs with s >= m- of (s - m-)

    The means are over the pairs of the global batch; pairs within their margin have no gradient. To add it to
    another loss: `WeightedSum([SmoothAPLoss(), ThresholdConsistentMarginLoss()])`.

    The loss is no mean over queries. For `reduction=None` and sample weights, L_q is the query's part of both
    sums, scaled so that the mean of L_q is the loss.

    Args:
        positive_margin: m+, a similarity that positives should reach. Default 0.9.
        negative_margin: m-, a similarity that negatives should stay below. Default 0.5.
        positive_weight: w+, at least 0. Default 1.
        negative_weight: w-, at least 0. Default 1.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A row without another image of its class has only negative pairs, which count as all others do.

    Reference: Zhang et al., Threshold-Consistent Margin Loss for Open-World Deep Metric Learning, ICLR 2024,
    arXiv 2307.04047; defaults are those of pytorch-metric-learning. Memory: about three matrices
    `[batch, batch]`; takes three passes.

    >>> loss = ThresholdConsistentMarginLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.2841
    """

    @checks.arguments
    def __init__(
        self,
        positive_margin: Number = 0.9,
        *,
        negative_margin: Number = 0.5,
        positive_weight: NonNegative = 1.0,
        negative_weight: NonNegative = 1.0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "tcm",
    ):
        hyper_parameters = dict(
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            positive_weight=positive_weight,
            negative_weight=negative_weight,
        )
        super().__init__(
            tcm_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
