"""The contrastive loss (Hadsell, Chopra and LeCun, CVPR 2006)."""

import keras
import tensorflow as tf

from tfrank.losses.core import scalars
from tfrank.losses.core.distances import unit_distances
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import Scalar


def _kernel(block: Block, margin):
    zero = tf.zeros_like(block.s)
    squared, distance, slope = unit_distances(block.s)
    near = tf.where(block.negative_mask, tf.nn.relu(margin - distance), zero)
    others = tf.reduce_sum(tf.cast(block.candidate_mask, block.s.dtype), axis=1, keepdims=True)
    share = 1 / tf.maximum(others, 1)
    losses = tf.reduce_sum(share * tf.where(block.positive_mask, squared, tf.square(near)), axis=1)
    push = -2 * near * slope
    # d(d^2)/ds = -2
    return losses, share * tf.where(block.positive_mask, -2 * tf.ones_like(push), push)


def contrastive_loss(
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *,
    margin: Scalar = 1.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The contrastive loss of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `ContrastiveLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    rows = (query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index)
    return score_rows(_kernel, *rows, margin)


@keras.saving.register_keras_serializable("tfrank")
class ContrastiveLoss(RankingLoss):
    """Pulls positives onto the query and pushes negatives to a distance of at least the margin.

        d_j = |q - x_j|, between unit vectors                                              (0 to 2)
        L_q = mean over all other rows j of:  d_j^2 for a positive, [m - d_j]_+^2 for a negative

    This is eq. 4 of the paper, without its factor 1/2, averaged over pairs. If all queries are valid, the
    mean over queries is the mean over all pairs of the batch, among which negatives far outnumber positives.

    Args:
        margin: m, at least 0; from 2 on, every negative is pushed. Default 1, as in TensorFlow Addons and
            pytorch-metric-learning; the paper gives no value.
        reduction: "mean" or None, see `RankingLoss`.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, CVPR
    2006. Memory: about three matrices `[batch, batch]`.

    >>> loss = ContrastiveLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.8572
    """

    def __init__(self, margin: Scalar = 1.0, *, reduction: str | None = "mean", name: str = "contrastive"):
        hyper_parameters = {"margin": scalars.number("margin", margin, at_least=0)}
        super().__init__(contrastive_loss, hyper_parameters, reduction=reduction, name=name)
