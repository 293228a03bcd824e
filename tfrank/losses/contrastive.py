"""The contrastive loss (Hadsell, Chopra and LeCun, CVPR 2006)."""

import functools

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.distances import unit_distances
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Scalar
from tfrank.losses.core.violators import Average, check_average, share_of_violator


def _terms(block: Block, margin, squared):
    """The loss of each positive and of each negative, and their slopes; 0 elsewhere."""
    zero = tf.zeros_like(block.s)
    far, distance, slope = unit_distances(block.s)
    near = tf.nn.relu(margin - distance)
    if squared:
        # d(d^2)/ds = -2
        of_positives, of_negatives = (far, -2 + zero), (tf.square(near), -2 * near * slope)
    else:
        of_positives, of_negatives = (distance, slope), (near, tf.where(near > 0, -slope, zero))
    masked = [tf.where(block.positive_mask, part, zero) for part in of_positives]
    return *masked, *(tf.where(block.negative_mask, part, zero) for part in of_negatives)


def _sum_kernel(squared, block: Block, margin, positive_share, negative_share):
    losses, slopes, of_negatives, negative_slopes = _terms(block, margin, squared)
    summed = tf.reduce_sum(positive_share * losses + negative_share * of_negatives, axis=1)
    return summed, positive_share * slopes + negative_share * negative_slopes


def _mean_kernel(squared, block: Block, margin):
    others = tf.reduce_sum(tf.cast(block.candidate_mask, block.s.dtype), axis=1, keepdims=True)
    share = 1 / tf.maximum(others, 1)
    return _sum_kernel(squared, block, margin, share, share)


def _count_kernel(place, block: Block, margin):
    """Counts the losses above 0 at a place of `_terms`: those of positives or of negatives."""
    losses = _terms(block, margin, squared=True)[place]
    return tf.math.count_nonzero(losses, axis=1, dtype=losses.dtype), tf.zeros_like(losses)


# One function for each form, so that each is compiled once.
_MEAN, _SUM = (
    {form: functools.partial(kernel, form) for form in (True, False)}
    for kernel in (_mean_kernel, _sum_kernel)
)
_COUNTS = [functools.partial(_count_kernel, place) for place in (0, 2)]


def contrastive_loss(
    *rows: tf.Tensor,
    margin: Scalar,
    squared: bool,
    average: Average,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The contrastive loss of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `ContrastiveLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    if average == "all":
        return score_rows(_MEAN[squared], *rows, margin)
    # A row without another of its class has negative pairs.
    score = functools.partial(score_rows, needs_positives=False)
    shares = [share_of_violator(*score(count, *rows, margin)) for count in _COUNTS]
    return score(_SUM[squared], *rows, margin, *shares)


@keras.saving.register_keras_serializable("tfrank")
class ContrastiveLoss(RankingLoss):
    """Pulls positives onto the query and pushes negatives to a distance of at least the margin.

        d_j = |q - x_j|, between unit vectors                                              (0 to 2)
        L_q = mean over all other rows j of:  d_j^2 for a positive, [m - d_j]_+^2 for a negative

    This is eq. 4 of the paper, without its factor 1/2, averaged over pairs. If all queries are valid, the
    mean over queries is the mean over all pairs of the batch, among which negatives far outnumber positives.

    With `squared=False` the terms are d_j and [m - d_j]_+. With `average="nonzero"` the loss is the mean over
    all positive pairs with a term above 0 in the global batch, plus the mean over all such negative pairs.
    Negatives then count as much as positives, and more of them where few violate the margin.

    Args:
        margin: m, at least 0; from 2 on, every negative is pushed. Default 1, as in TensorFlow Addons and
            pytorch-metric-learning; the paper gives no value.
        squared: whether terms are squared. Default True (the paper); False is the default of
            pytorch-metric-learning.
        average: "all" pairs of a query, or "nonzero", see above, the default of pytorch-metric-learning; it
            takes three passes. Default "all".
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean. With
    `average="nonzero"` its negative pairs count as all others do.

    Reference: Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, CVPR
    2006. Memory: about three matrices `[batch, batch]`.

    >>> loss = ContrastiveLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.8572
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 1.0,
        *,
        squared: bool = True,
        average: Average = "all",
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "contrastive",
    ):
        hyper_parameters = dict(margin=margin, squared=squared, average=check_average(average, reduction))
        super().__init__(
            contrastive_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
