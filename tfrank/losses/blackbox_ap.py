"""Blackbox AP: Average Precision of the exact, piecewise constant ranks (Rolinek et al., CVPR 2020)."""

import functools

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.devices import gpu
from tfrank.losses.core import scalars
from tfrank.losses.core.hard_ranks import FROM_POSITIVES, SortedScores, number_above
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Positive, Scalar


def _kernel(block: Block, interpolation, margin):
    """Exact AP of a block of rows, and the interpolated derivative of the ranks.

    The two rankings of the derivative differ only in the scores of positives. The rank of a gallery row
    therefore changes by the number of positives that pass it.
    """
    half = margin / 2
    s = block.s + tf.where(block.negative_mask, half, -half)
    gallery = block.s.shape[1] or tf.shape(block.s)[1]
    if gpu() or (isinstance(gallery, int) and gallery <= FROM_POSITIVES):
        return _by_walks(block, s, interpolation)
    widths = [0, tf.maximum(gallery // 4, FROM_POSITIVES), gallery]
    form = tf.cast(block.most_positives > FROM_POSITIVES, tf.int32)
    form += tf.cast(block.most_positives > widths[1], tf.int32)
    by_sorting = [functools.partial(_by_sorting, block, s, interpolation, width) for width in widths[1:]]
    return tf.switch_case(form, [lambda: _by_walks(block, s, interpolation), *by_sorting])


def _by_sorting(block: Block, s, interpolation, width):
    """Ranks of rows with at most `width` positives, by `hard_ranks`."""
    dtype = s.dtype
    columns, exists = block.positive_columns(width)
    scores = tf.gather(s, columns, axis=1, batch_dims=1)
    size = tf.reduce_sum(tf.cast(block.candidate_mask, dtype), axis=1, keepdims=True)
    positives = block.positives[:, None]

    def ranked(scores):
        """How many negatives and how many positives are above each positive; and, for each entry, how many
        positives are not above it.
        """
        ordered = SortedScores(scores, exists)
        below, not_above = ordered.below(scores)
        below_entry, not_above_entry = ordered.below(s)
        above = number_above(below_entry, block.negative_mask, width + 1)
        negatives = tf.cast(tf.gather(above, below, axis=1, batch_dims=1), dtype)
        return negatives, positives - tf.cast(not_above, dtype), tf.cast(not_above_entry, dtype)

    negatives, others, not_above = ranked(scores)
    rank = 1 + negatives + others
    losses = tf.reduce_sum(tf.where(exists, negatives / (rank * positives), tf.zeros_like(rank)), axis=1)
    # g = dL / d rank, with the rank among positives as a constant; ranks are divided by their number.
    g = (1 + others) * size / (positives * rank**2)
    new_negatives, new_others, new_not_above = ranked(scores + interpolation * g)
    of_negatives = tf.where(block.negative_mask, not_above - new_not_above, tf.zeros_like(s))
    of_positives = tf.where(exists, new_negatives - negatives + new_others - others, tf.zeros_like(rank))
    return losses, block.add_at(of_negatives, columns, of_positives) / (interpolation * size)


def _by_walks(block: Block, s, interpolation):
    """Ranks one positive after the other; two walks over the positives replace two sorts."""
    candidates = tf.where(block.candidate_mask, s, block.s.dtype.min)
    size = tf.reduce_sum(tf.cast(block.candidate_mask, s.dtype), axis=1)

    def before(scores, score, mask):
        """1 for the columns of `mask` that rank before `score`, else 0."""
        return tf.cast(mask & (scores > score), s.dtype)

    def rank(i, exists, losses, perturbed):
        score = block.at(i, s)
        all_before = tf.reduce_sum(before(candidates, score, block.candidate_mask), axis=1)
        positives_before = tf.reduce_sum(before(candidates, score, block.positive_mask), axis=1)
        all_rank, positive_rank = (1 + all_before) / size, (1 + positives_before) / size
        none = tf.zeros_like(losses)
        # 1 - positive_rank / all_rank, whose difference would cancel near 0.
        loss = tf.where(exists, (all_before - positives_before) / ((1 + all_before) * block.positives), none)
        # g = dL / d rank, with the rank among positives as a constant.
        g = tf.where(exists, positive_rank / (block.positives * all_rank**2), none)
        return losses + loss, block.add_at(perturbed, i, interpolation * g)

    losses, perturbed = block.loop_over_positives(rank, (tf.zeros_like(s)[:, 0], candidates))

    def add_rank_changes(i, exists, rank_changes):
        score, new_score = block.at(i, s), block.at(i, perturbed)
        # The rank of positive i among the negatives decreases; the rank of each row it passes increases.
        negatives = tf.reduce_sum(
            before(candidates, new_score, block.negative_mask)
            - before(candidates, score, block.negative_mask),
            axis=1,
        )
        passed = tf.cast(new_score > perturbed, s.dtype) - tf.cast(score > candidates, s.dtype)
        passed = tf.where(exists[:, None], passed, tf.zeros_like(passed))
        return (
            block.add_at(rank_changes + passed, i, tf.where(exists, negatives, tf.zeros_like(negatives))),
        )

    (rank_changes,) = block.loop_over_positives(add_rank_changes, (tf.zeros_like(s),))
    # -(rank(s) - rank(s + lambda g)) / lambda; the query's own row has no rank.
    slopes = rank_changes / (interpolation * size[:, None])
    return losses, tf.where(block.candidate_mask, slopes, tf.zeros_like(slopes))


def blackbox_ap_loss(
    *rows: tf.Tensor,
    interpolation: Scalar,
    margin: Scalar,
) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - AP_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `BlackboxAPLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    query_labels, query_embeddings, gallery_labels, _, self_index = rows
    queries = _valid_queries(query_labels, gallery_labels, self_index)
    step = scalars.tensor(interpolation, query_embeddings.dtype) / tf.cast(queries, query_embeddings.dtype)
    return score_rows(_kernel, *rows, step, margin)


def _valid_queries(query_labels, gallery_labels, self_index):
    """The number of valid queries, on all replicas alike: of the gallery's rows if queries are among them."""
    ordered = tf.sort(gallery_labels)

    def valid(labels, least):
        size = tf.searchsorted(ordered, labels, "right") - tf.searchsorted(ordered, labels, "left")
        return tf.math.count_nonzero(size >= least)

    among = tf.reduce_any(self_index >= 0)
    all_queries = distributed.gather_rows(query_labels)
    return tf.maximum(tf.where(among, valid(gallery_labels, 2), valid(all_queries, 1)), 1)


@keras.saving.register_keras_serializable("tfrank")
class BlackboxAPLoss(RankingLoss):
    """One minus the exact Average Precision of shifted scores, differentiated by interpolated ranks.

        s_j = similarity - margin / 2 for positives, + margin / 2 for negatives
        rank(s)_i = (1 + number of s_j above s_i) / number of s_j
        L_q = 1 - 1/|P| sum over positives i of rank_P(s)_i / rank(s)_i
        g = dL_q / d rank(s), with rank_P, the rank among positives, a constant
        dL_q / ds = -(rank(s) - rank(s + h g)) / h,       h = lambda / Q

    with Q the number of valid queries of the global batch (all rows with another of their class in the
    gallery, if the batch is a part of it). As the loss of a batch is a mean over Q queries, lambda times its
    gradient is h g, which is what the authors' code adds to the scores. With margin 0 the value is 1 - AP
    itself; ties share the better rank. The value is piecewise constant, and the slope is that of its
    continuous interpolation.

    Args:
        interpolation: lambda, positive. Larger values take more distant ranks into account but are less
            faithful. Default 4 (the authors' retrieval experiments, with batches of 128).
        margin: how far above negatives positives should score, at least 0. Default 0.02 (the same). Here the
            shift is fixed; the authors' code draws its size at random.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Rolinek et al., Optimizing Rank-based Metrics with Blackbox Differentiation, CVPR 2020,
    arXiv 1912.03500. Memory: about three matrices `[batch, batch]`.

    >>> loss = BlackboxAPLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.5833
    """

    @checks.arguments
    def __init__(
        self,
        interpolation: Positive = 4.0,
        *,
        margin: NonNegative = 0.02,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "blackbox_ap",
    ):
        hyper_parameters = dict(interpolation=interpolation, margin=margin)
        super().__init__(
            blackbox_ap_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
