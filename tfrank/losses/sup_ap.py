"""ROADMAP: SupAP with a calibration loss (Ramzi et al., NeurIPS 2021, arXiv 2110.01445)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core import scalars
from tfrank.losses.core.bound_ranks import BoundRanks, bound_where_it_pays
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.ranks import Step, hard_step, penalty_kernel, sigmoid_step
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Number, Positive, Scalar, Share
from tfrank.losses.smooth_ap import penalty


def upper_bound_step(
    temperature: float | tf.Tensor, rho: float | tf.Tensor, delta: float | tf.Tensor
) -> Step:
    """An upper bound of the step function, except at ties, whose slope does not vanish for large x.

    H(x) is sigmoid(x / temperature) for x <= 0, 1/2 more up to delta, and a line of slope rho beyond.
    """
    sigmoid = sigmoid_step(temperature)

    def step(x):
        value, slope = sigmoid(tf.minimum(x, delta))
        value = value + tf.where(x > 0, 0.5 + rho * tf.maximum(x - delta, 0), tf.zeros_like(x))
        return value, tf.where(x > delta, rho * tf.ones_like(x), slope)

    return step


def calibration_kernel(
    block: Block, positive_margin: tf.Tensor, negative_margin: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """L = mean over positives of [positive_margin - s]_+ + mean over negatives of [s - negative_margin]_+."""
    zero = tf.zeros_like(block.s)
    positive = tf.where(block.positive_mask, positive_margin - block.s, zero)
    negative = tf.where(block.negative_mask, block.s - negative_margin, zero)
    losses = (
        tf.reduce_sum(tf.nn.relu(positive), axis=1) / block.positives
        + tf.reduce_sum(tf.nn.relu(negative), axis=1) / block.negatives
    )
    slopes = tf.where(positive > 0, -1 / block.positives[:, None], zero)
    return losses, tf.where(negative > 0, 1 / block.negatives[:, None], slopes)


def _ranking_kernel(block: Block, temperature, rho, delta):
    exact = penalty_kernel(penalty, upper_bound_step(temperature, rho, delta), hard_step)

    def at_once(grids, columns, exists):
        ranks = BoundRanks(block, *grids, temperature, rho, delta, block.negative_mask, columns, exists)
        others = ranks.number_above(block.positive_mask)
        with tf.GradientTape() as tape:
            tape.watch(ranks.counts)
            losses = penalty(ranks.counts, others) / block.positives[:, None]
            losses = tf.where(exists, losses, tf.zeros_like(losses))
        slopes, rates = ranks.slopes(tape.gradient(losses, ranks.counts))
        return tf.reduce_sum(losses, axis=1), slopes, [rates]

    return bound_where_it_pays(
        block, temperature, delta, [block.negative_mask], at_once, lambda: exact(block)
    )


def _kernel(block: Block, temperature, rho, delta, calibration_weight, positive_margin, negative_margin):
    ranking = _ranking_kernel(block, temperature, rho, delta)
    calibration = calibration_kernel(block, positive_margin, negative_margin)
    return tuple(_weighted(*parts, calibration_weight) for parts in zip(ranking, calibration))


def _weighted(ranking, calibration, calibration_weight):
    return (1 - calibration_weight) * ranking + calibration_weight * calibration


def sup_ap_loss(
    *rows: tf.Tensor,
    temperature: Scalar,
    rho: Scalar,
    delta: Scalar,
    calibration_weight: Scalar,
    positive_margin: Scalar,
    negative_margin: Scalar,
    include_self: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_ROADMAP of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `SupAPLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    of_ranks, of_levels = (temperature, rho, delta), (positive_margin, negative_margin)
    if not include_self:
        return score_rows(_kernel, *rows, *of_ranks, calibration_weight, *of_levels)
    # The query ranks among its positives, but has no similarity to itself to calibrate.
    ranking, valid = score_rows(_ranking_kernel, *rows, *of_ranks, include_self=True)
    calibration, _ = score_rows(calibration_kernel, *rows, *of_levels)
    return _weighted(ranking, calibration, scalars.tensor(calibration_weight, ranking.dtype)), valid


@keras.saving.register_keras_serializable("tfrank")
class SupAPLoss(RankingLoss):
    """An upper bound of one minus Average Precision, plus a calibration of similarities across batches.

        H(x) = sigmoid(x / temperature)            x <= 0
               sigmoid(x / temperature) + 1/2      0 < x <= delta
               rho (x - delta) + sigmoid(delta / temperature) + 1/2      beyond
        N_i = sum over negatives j of H(s_j - s_i)
        P_i = number of other positives with s_j > s_i; no gradient
        L_SupAP = 1 - 1/|P| sum over positives i of (1 + P_i) / (1 + P_i + N_i)
        L_calibration = mean over positives of [positive_margin - s]_+
                      + mean over negatives of [s - negative_margin]_+
        L_q = (1 - w) L_SupAP + w L_calibration

    A negative tied with a positive counts half. Unlike the sigmoid, H has a gradient even for negatives far
    before a positive. The calibration makes similarities comparable between queries, so that the loss of a
    batch represents that of the whole data set better.

    Args:
        temperature: temperature of the sigmoid, positive. Default 0.01.
        rho: slope of the line, at least 0. Default 100.
        delta: difference of similarities at which the line begins, at least 0. Default 0.05.
        calibration_weight: w, 0 (SupAP alone) to 1. Default 0.5.
        positive_margin: similarity that positives should reach. Default 0.9.
        negative_margin: similarity that negatives should stay below. Default 0.6.
        include_self: whether the query also counts as a positive of itself in L_SupAP, which then takes two
            passes. Default False.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021,
    arXiv 2110.01445; defaults are the paper's. Memory: about three matrices `[batch, batch]`.

    >>> loss = SupAPLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.9879
    """

    @checks.arguments
    def __init__(
        self,
        temperature: Positive = 0.01,
        *,
        rho: NonNegative = 100.0,
        delta: NonNegative = 0.05,
        calibration_weight: Share = 0.5,
        positive_margin: Number = 0.9,
        negative_margin: Number = 0.6,
        include_self: bool = False,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "sup_ap",
    ):
        hyper_parameters = dict(
            temperature=temperature,
            rho=rho,
            delta=delta,
            calibration_weight=calibration_weight,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            include_self=include_self,
        )
        super().__init__(
            sup_ap_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
