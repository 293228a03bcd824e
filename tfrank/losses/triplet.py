"""Triplet loss with mining in the batch (Schroff et al., CVPR 2015; Hermans et al., arXiv 1703.07737)."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core.distances import unit_distances
from tfrank.losses.core.permutation import inverse
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, Kernel, score_rows
from tfrank.losses.core.scalars import NonNegative, Scalar
from tfrank.losses.core.violators import Average, check_average, share_of_violator


def _nearest(s, mask):
    """`[rows, 1]`: the largest similarity among the columns of the mask; the dtype's minimum if none."""
    return tf.reduce_max(tf.where(mask, s, s.dtype.min), axis=1, keepdims=True)


def _farthest(s, mask):
    return tf.reduce_min(tf.where(mask, s, s.dtype.max), axis=1, keepdims=True)


def _shared(slope, mask):
    """`[rows, gallery]`: a slope `[rows, 1]`, shared equally among the columns of the mask, which tie."""
    ties = tf.maximum(tf.reduce_sum(tf.cast(mask, slope.dtype), axis=1, keepdims=True), 1)
    return tf.where(mask, slope / ties, tf.zeros_like(slope))


class Form(NamedTuple):
    """How the loss of a triplet depends on its distances.

    Attributes:
        squared: whether distances are squared.
        soft: whether the loss is the softplus of their difference, and not a hinge with a margin.
        counts: whether the loss is replaced by 1 where it is not 0, without a slope.
    """

    squared: bool
    soft: bool
    counts: bool = False

    def of_triplet(self, margin, s_positive, s_negative):
        """The loss, and its slopes by the similarities of the positive and of the negative."""
        if self.squared:  # For unit vectors, d^2 = 2 - 2s.
            difference, slopes = 2 * (s_negative - s_positive), (-2.0, 2.0)
        else:
            (_, d_positive, slope), (_, d_negative, other) = map(unit_distances, (s_positive, s_negative))
            difference, slopes = d_positive - d_negative, (slope, -other)
        if self.soft:
            losses, active = tf.nn.softplus(difference), tf.sigmoid(difference)
        else:
            losses = tf.nn.relu(margin + difference)
            active = tf.cast(losses > 0, losses.dtype)
        if self.counts:
            return tf.cast(losses > 0, losses.dtype), *(0 * active * slope for slope in slopes)
        return losses, *(active * slope for slope in slopes)


def _batch_hard(form: Form, block: Block, margin):
    """The kernel that takes the farthest positive and the nearest negative."""
    s_positive, s_negative = _farthest(block.s, block.positive_mask), _nearest(block.s, block.negative_mask)
    losses, of_positive, of_negative = form.of_triplet(margin, s_positive, s_negative)
    push = _shared(of_negative, block.negative_mask & (block.s == s_negative))
    pull = _shared(of_positive, block.positive_mask & (block.s == s_positive))
    return losses[:, 0], push + pull


def _semi_hard(form: Form, block: Block, margin):
    """The kernel that takes, for each positive, the nearest negative beyond it, or else the farthest."""
    farthest = _farthest(block.s, block.negative_mask)

    def term(s_positive):
        farther = _nearest(block.s, block.negative_mask & (block.s < s_positive))
        s_negative = tf.where(farther > block.s.dtype.min, farther, farthest)
        losses, of_positive, of_negative = form.of_triplet(margin, s_positive, s_negative)
        push = _shared(of_negative, block.negative_mask & (block.s == s_negative))
        return losses[:, 0], of_positive[:, 0], push

    return _mean_over_positives(block, term)


def _all_triplets(form: Form, block: Block, margin):
    """The kernel that takes every positive and every negative."""

    def term(s_positive):
        parts = form.of_triplet(margin, s_positive, block.s)
        losses, pull, push = (tf.where(block.negative_mask, x, tf.zeros_like(x)) for x in parts)
        of_query = 1 / block.negatives
        return (
            tf.reduce_sum(losses, axis=1) * of_query,
            tf.reduce_sum(pull, axis=1) * of_query,
            push * of_query[:, None],
        )

    return _mean_over_positives(block, term)


def _mean_over_positives(block: Block, term: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]):
    """The mean of `term`: the loss of a positive's similarity, its slope, and the slopes of its negatives."""
    zero = tf.zeros_like(block.s)

    def visit(i, exists, losses, slopes):
        loss, pull, push = term(block.at(i))
        share = tf.cast(exists, loss.dtype) / block.positives
        loss, pull = (tf.where(exists, share * x, tf.zeros_like(x)) for x in (loss, pull))
        return losses + loss, block.add_at(slopes + share[:, None] * push, i, pull)

    return block.loop_over_positives(visit, (zero[:, 0], zero))


def _summed(kernel, mining: str, block: Block, margin):
    """The kernel with the sum over a query's triplets in place of their mean."""
    one = tf.ones_like(block.positives)
    triplets = {"semi_hard": block.positives, "hard": one, "all": block.positives * block.negatives}[mining]
    losses, slopes = kernel(block, margin)
    return triplets * losses, triplets[:, None] * slopes


_KERNELS = {"semi_hard": _semi_hard, "hard": _batch_hard, "all": _all_triplets}
Mining = Literal["semi_hard", "hard", "all"]
# One function for each combination, so that each is compiled once.
_COMBINED: dict[tuple[str, Form], Kernel] = {
    (mining, form): functools.partial(kernel, form)
    for mining, kernel in _KERNELS.items()
    for form in itertools.starmap(Form, itertools.product([True, False], repeat=3))
}
_SUMMED = {
    (mining, form): functools.partial(_summed, kernel, mining) for (mining, form), kernel in _COMBINED.items()
}


def triplet_loss(
    *rows: tf.Tensor,
    margin: Scalar,
    mining: Mining,
    squared: bool,
    soft: bool,
    average: Average,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `TripletLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    score = functools.partial(score_rows, needs_negatives=True)
    if average == "all":
        return score(_COMBINED[mining, Form(squared, soft)], *rows, margin)
    share = share_of_violator(*score(_SUMMED[mining, Form(squared, soft, counts=True)], *rows, margin))
    losses, valid = score(_SUMMED[mining, Form(squared, soft)], *rows, margin)
    return share * losses, valid


def hardest_queries(losses: tf.Tensor, valid: tf.Tensor, number: int) -> tf.Tensor:
    """Marks the queries with the `number` largest losses in the global batch, `[queries]` bool.

    Among equal losses, the query that is earlier in the global batch goes first.

    Args:
        losses: `[queries]` of this replica, at least 0.
        valid: `[queries]` bool, the valid queries; others are never marked.
        number: how many to mark.
    """
    of_all = distributed.gather_rows(tf.where(valid, losses, -tf.ones_like(losses)))
    rank = inverse(tf.argsort(of_all, direction="DESCENDING", stable=True))
    own = distributed.first_row(losses) + tf.range(tf.size(losses))
    return valid & (tf.cast(tf.gather(rank, own), tf.int64) < number)


@keras.saving.register_keras_serializable("tfrank")
class TripletLoss(RankingLoss):
    """Pushes each negative farther away than a positive by a margin, with triplets mined in the batch.

        d_j^2 = |q - x_j|^2 = 2 - 2 s_j, between unit vectors                              (0 to 4)
        L(p, n) = [d_p^2 + m - d_n^2]_+                              (eq. 1 of arXiv 1903.03238)

        mining       L_q
        "semi_hard"  mean over positives p of L(p, n), n the nearest negative with d_n > d_p, or the
                     farthest negative if none is beyond p
        "hard"       L(p, n) of the farthest positive and the nearest negative
        "all"        mean over all positives p and negatives n of L(p, n)

    With `squared=False` it is the distances d that are compared, not their squares. With `soft` the hinge
    and its margin are replaced: L(p, n) = log(1 + exp(d_p^2 - d_n^2)), or of d_p - d_n as in Hermans et al.

    With `average="nonzero"` the loss is the mean over all triplets of the global batch with L(p, n) > 0. Late
    in training few triplets violate the margin, and their gradient is not diluted by the others.

    Rows at the same distance share the gradient equally.

    With `hardest` = N, only the N queries with the largest L_q in the global batch count. With "hard" mining
    this gives N hard triplets per update, the baseline TL-N of arXiv 1906.07589 (Table 1; N is 64, 512 and
    1,024 there). There, negatives are mined offline in a pool of images that is embedded from time to time.
    Here the batch is the pool: it is current at every step, and can have any size with multi-stage backprop.
    Sample weights apply to the N queries, but do not influence which ones are chosen.

    Args:
        margin: m, of squared distances unless `squared=False`, at least 0; not used if `soft`. Default 0.2
            (Schroff et al.).
        mining: "semi_hard", "hard" or "all". Default "semi_hard", that of Schroff et al.; if no semi-hard
            negative exists, the farthest one is used, as in TensorFlow Addons. "hard" is the batch hard of
            Hermans et al.
        squared: whether distances are squared. Default True (Schroff et al.); False is the default of
            pytorch-metric-learning and TensorFlow Addons.
        soft: whether to use the softplus in place of the hinge, the soft margin of Hermans et al. Default
            False.
        average: "all" triplets of a query, or "nonzero", see above, the default of pytorch-metric-learning;
            takes two passes. Default "all".
        hardest: N; 0 means that all valid queries count. Default 0.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class, or without one of another class, has no triplet. It has no
    loss and no gradient, and is left out of the mean. A query whose triplets all have loss 0 is valid.

    Reference: Schroff et al., FaceNet, CVPR 2015, arXiv 1503.03832; Hermans et al., In Defense of the
    Triplet Loss for Person Re-Identification, arXiv 1703.07737. Memory: about three matrices
    `[batch, batch]`. Time: passes over them for each positive, except with "hard" mining.

    >>> loss = TripletLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.2104
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 0.2,
        *,
        mining: Mining = "semi_hard",
        squared: bool = True,
        soft: bool = False,
        average: Average = "all",
        hardest: checks.NonNegativeInt = 0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "triplet",
    ):
        hyper_parameters = dict(
            margin=margin,
            mining=mining,
            squared=squared,
            soft=soft,
            average=check_average(average, reduction),
        )
        super().__init__(
            triplet_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.hardest = hardest
        if self.hardest and average == "nonzero":
            raise checks.invalid("average", "'all' with `hardest`, which counts whole queries", average)

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core; with `hardest`, only the hardest queries of all replicas count."""
        losses, valid = super()._score(*rows)
        if not self.hardest:
            return losses, valid
        valid = hardest_queries(losses, valid, self.hardest)
        # `where` would hide a NaN.
        return losses * tf.cast(valid, losses.dtype), valid

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "hardest": self.hardest}
