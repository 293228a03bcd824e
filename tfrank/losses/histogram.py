"""Histogram loss (Ustinova and Lempitsky, NIPS 2016, arXiv 1611.00822)."""

import functools
from typing import Annotated

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core import padding
from tfrank.losses.core.first_order import first_derivative
from tfrank.losses.core.pairs import pair_masks, similarities
from tfrank.losses.core.ranking_loss import RankingLoss


def soft_histograms(s: tf.Tensor, groups: tf.Tensor, num_groups: int, num_bins: int) -> tf.Tensor:
    """Soft histograms of the similarities of each row and group (eq. 1 and 2).

    Each similarity is shared among the two nodes next to it.

    Args:
        s: `[rows, columns]` similarities, outside -1 to 1 by rounding only.
        groups: `[rows, columns]` int32, 0 to num_groups; entries of num_groups are left out.
        num_groups: number of groups that are counted.
        num_bins: number of nodes, from -1 to 1.

    Returns:
        `[rows, num_groups, num_bins]`, not normalised: each similarity adds 1 in total.
    """
    count, spread = _compiled(num_groups, num_bins)
    rows, columns = tf.unstack(tf.shape(s))
    more = padding.missing(rows), padding.missing(columns)
    groups = padding.pad(groups, *more, value=num_groups)

    @tf.custom_gradient
    def counted(s):
        # Without stop_gradient a persistent tape would differentiate the compiled function.
        histograms, bins = map(tf.stop_gradient, count(tf.stop_gradient(s), groups))
        return histograms, lambda upstream: first_derivative(spread(upstream, bins), s)

    return counted(padding.pad(s, *more))[:rows]


@functools.cache
def _compiled(num_groups, num_bins):
    """The compiled functions of the histograms and of their gradient.

    The first also returns the bin of each similarity, which the second takes.
    """
    per_unit = (num_bins - 1) / 2  # 1 / spacing
    size = num_groups * num_bins

    def count(s, groups):
        position = tf.clip_by_value((s + 1) * per_unit, 0, num_bins - 1)
        lower = tf.clip_by_value(tf.cast(position, tf.int32), 0, num_bins - 2)
        fraction = position - tf.cast(lower, s.dtype)
        bins = groups * num_bins + lower
        rows = tf.shape(s)[0]
        # Entries that are left out get index -1, which the segment sum ignores.
        place = tf.where(groups < num_groups, bins + size * tf.range(rows)[:, None], -1)
        below, above = (
            tf.math.unsorted_segment_sum(share, place, size * rows) for share in (1 - fraction, fraction)
        )
        # The roll moves nothing into the next group: no similarity has the last node as its lower one.
        return tf.reshape(below + tf.roll(above, 1, axis=0), [-1, num_groups, num_bins]), bins

    def spread(upstream, bins):
        rates = tf.pad((upstream[:, :, 1:] - upstream[:, :, :-1]) * per_unit, [[0, 0], [0, 1], [0, 1]])
        return tf.gather(tf.reshape(rates, [-1, size + num_bins]), bins, axis=1, batch_dims=1)

    compiled = functools.partial(tf.function, jit_compile=True, autograph=False, reduce_retracing=True)
    return compiled(count), compiled(spread)


def histogram_loss(
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *,
    num_bins: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `HistogramLoss`; h+ covers all valid queries, those of all replicas. Takes the
    arguments of `score_rows`; embeddings have unit norm.
    """
    positives, negatives = pair_masks(query_labels, gallery_labels, self_index)
    valid = tf.reduce_any(positives, axis=1) & tf.reduce_any(negatives, axis=1)
    groups = tf.where(negatives, 0, tf.where(positives & valid[:, None], 1, 2))
    s = similarities(query_embeddings, gallery_embeddings)
    h_negative, h_positive = tf.unstack(soft_histograms(s, groups, 2, num_bins), axis=1)

    h_positive = distributed.gather_rows(tf.reduce_sum(h_positive, axis=0, keepdims=True))
    h_positive = tf.reduce_sum(h_positive, axis=0)
    # The sum of a histogram does not depend on the similarities.
    number = tf.stop_gradient(tf.reduce_sum(h_positive))
    phi = tf.cumsum(tf.math.divide_no_nan(h_positive, number))
    number = tf.reduce_sum(tf.cast(negatives, s.dtype), axis=1)
    losses = tf.linalg.matvec(h_negative, phi) / tf.maximum(number, 1)
    # Add 0 x embeddings, as bins would hide a NaN.
    losses += 0 * (tf.reduce_sum(query_embeddings) + tf.reduce_sum(gallery_embeddings))
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


@keras.saving.register_keras_serializable("tfrank")
class HistogramLoss(RankingLoss):
    """The probability that a random negative pair is more similar than a random positive pair.

        t_r = -1 + (r - 1) D, D = 2 / (R - 1)                        R nodes on [-1, 1]
        delta(s, r) = max(1 - |s - t_r| / D, 0)                                     (eq. 2)
        h+_r = mean of delta(s, r) over the positive pairs of the global batch      (eq. 1)
        h-_r = mean of delta(s_n, r) over the negatives n of the query
        Phi_r = sum_{r' <= r} h+_r'
        L_q = sum_r h-_r Phi_r                      a tie counts as a reversal      (eq. 4)

    The paper takes h- too over all pairs. If all classes have the same size, the mean over queries is the
    same. Otherwise every query has the same weight here, and every pair in the paper. Queries share h+, so
    the loss of a query also moves positive pairs of other queries.

    Args:
        num_bins: R, at least 2. Default 201: nodes 0.01 apart, as in the paper.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. Sample weights
    apply to the L_q, but not to the pairs in h+.

    A query without another image of its class, or without an image of another class, has no loss, no
    gradient and no pairs in h+, and is left out of the mean.

    Reference: Ustinova and Lempitsky, Learning Deep Embeddings with Histogram Loss, NIPS 2016, arXiv
    1611.00822. Memory: about seven matrices `[batch, batch]`.

    >>> loss = HistogramLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.75
    """

    @checks.arguments
    def __init__(
        self,
        num_bins: Annotated[int, functools.partial(checks.integer, at_least=2)] = 201,
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "histogram",
    ):
        super().__init__(
            histogram_loss, {"num_bins": num_bins}, reduction=reduction, ignore_label=ignore_label, name=name
        )
