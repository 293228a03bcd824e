"""Lifted structured loss (Song et al., CVPR 2016, arXiv 1511.06452)."""

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core import scalars
from tfrank.losses.core.pairs import pair_masks, similarities
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.scalars import NonNegative, Scalar
from tfrank.losses.core.tails import LOG_OF_ZERO


def distances(queries: tf.Tensor, gallery: tf.Tensor, *, unit: bool) -> tf.Tensor:
    """Euclidean distances `[queries, gallery]`; the gradient at distance 0 is 0.

    Args:
        queries: `[queries, dim]` float.
        gallery: `[gallery, dim]` float.
        unit: whether all rows have norm 1. Rows of zeros are then treated as if they had norm 1.
    """
    norms = 2.0
    if not unit:
        of_queries, of_gallery = (tf.reduce_sum(tf.square(rows), axis=1) for rows in (queries, gallery))
        norms = of_queries[:, None] + of_gallery
    squared = norms - 2 * similarities(queries, gallery)
    apart = squared > 0
    # `where` differentiates both branches, so take the root of 1 where the distance is 0.
    return tf.where(apart, tf.sqrt(tf.where(apart, squared, tf.ones_like(squared))), tf.zeros_like(squared))


def _log_of_sum(a, b):
    """log(exp(a) + exp(b)), with a gradient that is correct at a = b too."""
    largest = tf.stop_gradient(tf.maximum(a, b))
    return largest + tf.math.log(tf.exp(a - largest) + tf.exp(b - largest))


def lifted_structure_loss(
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *,
    margin: Scalar,
    squared: bool,
    normalize: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `LiftedStructureLoss`; A_j of a gallery row j is summed over the queries of
    other labels, those of all replicas. Takes the arguments of `score_rows`; without `normalize`, embeddings
    may have any norm.
    """
    positives, negatives = pair_masks(query_labels, gallery_labels, self_index)
    d = distances(query_embeddings, gallery_embeddings, unit=normalize)
    # The hinge turns log(A) of no negatives into 0.
    pushes = tf.where(negatives, scalars.tensor(margin, d.dtype) - d, LOG_OF_ZERO)
    log_of_query = tf.reduce_logsumexp(pushes, axis=1, keepdims=True)
    # The negatives of a gallery row are spread over all replicas.
    log_of_row = distributed.gather_rows(tf.reduce_logsumexp(pushes, axis=0, keepdims=True))
    log_of_row = tf.reduce_logsumexp(log_of_row, axis=0)
    hinge = tf.nn.relu(d + _log_of_sum(log_of_query, log_of_row))
    terms = tf.where(positives, tf.square(hinge) if squared else hinge, tf.zeros_like(hinge))
    number = tf.reduce_sum(tf.cast(positives, d.dtype), axis=1)
    # Add 0 x embeddings, as the hinge may hide a NaN.
    nan = 0 * (tf.reduce_sum(query_embeddings) + tf.reduce_sum(gallery_embeddings))
    return 0.5 * tf.reduce_sum(terms, axis=1) / tf.maximum(number, 1) + nan, number > 0


@keras.saving.register_keras_serializable("tfrank")
class LiftedStructureLoss(RankingLoss):
    """Pulls each positive pair together, and pushes all negatives away from both of its rows.

        d_ij = |x_i - x_j|, of the embeddings without normalisation
        A_i = sum over negatives k of row i of exp(m - d_ik)
        J_ij = d_ij + log(A_i + A_j)
        L_q = 1/2 mean over positives j of [J_qj]_+

    This is eq. 3 of arXiv 1903.03238, which averages over pairs. If all classes have the same size, the mean
    is the same; otherwise the positives of a query share its weight here. With `squared` it is 1/2 [J]_+^2,
    as in eq. 4 of Song et al. and in TensorFlow Addons.

    Args:
        margin: m, at least 0. Default 1 (the authors' code).
        squared: whether J is squared. Default False (eq. 3).
        normalize: whether embeddings are L2-normalised first. Default False, unlike most losses, as in
            both papers. Results of runs and of the callback are by the cosine even so;
            `evaluate(..., distance="euclidean")` ranks by the distance of this loss.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. If they are
    not normalised, squared distances must be finite: no norms above 1e18 in float32. Distances are computed
    from dot products: in float32, distances below 1e-3 of the norms are rounding errors.

    A query without another image of its class has no loss and no gradient, and is left out of the mean. A
    pair without a negative for either row, whose J contains log(0), counts as 0.

    Reference: Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016, arXiv
    1511.06452. Memory: about fifteen matrices `[batch, batch]`.

    >>> loss = LiftedStructureLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.5521
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 1.0,
        *,
        squared: bool = False,
        normalize: bool = False,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "lifted_structure",
    ):
        hyper_parameters = dict(margin=margin, squared=squared, normalize=normalize)
        super().__init__(
            lifted_structure_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.normalize = normalize
