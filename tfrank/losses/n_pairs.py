"""N-pair-mc loss (Sohn, NIPS 2016)."""

from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.log_sum_exp import log_sum_exp
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows


def _kernel(block: Block):
    """log(1 + sum_j exp(s_j - s_i)) is softplus(x_i), x_i = log(sum_j exp(s_j)) - s_i: one sum for all i."""
    zero = tf.zeros_like(block.s)
    total, shares = log_sum_exp(tf.where(~block.same, block.s, -float("inf")))
    x = total - block.s
    weight = 1 / block.positives[:, None]
    losses = tf.reduce_sum(tf.where(block.fellow, weight * tf.math.softplus(x), zero), axis=1)
    pulls = tf.where(block.fellow, weight * tf.sigmoid(x), zero)
    return losses, tf.reduce_sum(pulls, axis=1, keepdims=True) * shares - pulls


def n_pairs_loss(
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    The formula is `NPairsLoss`'s, the arguments `score_rows`'s, but embeddings may be of any norm.
    """
    rows = (query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index)
    return score_rows(_kernel, *rows)


@keras.saving.register_keras_serializable("tfrank")
class NPairsLoss(RankingLoss):
    """Tells each positive from all negatives at once: softmax cross-entropy of dot products.

        s_j = q . x_j, of the embeddings as they are
        L_q = mean over positives i of log(1 + sum over negatives j of exp(s_j - s_i))

    That is N-pair-mc (eq. 2 of arXiv 1903.03238) with every row of the batch an anchor, every other row
    of its class in turn its positive, and all rows of other classes its negatives. Eq. 2 to the letter,
    with N anchors and N positives, is `n_pairs_loss` of the anchors against a gallery of the positives,
    self_index -1. The paper adds a penalty on the norms of embeddings, which is not part of this loss.

    Args:
        normalize: whether embeddings are L2-normalised first. Default False, unlike the other losses:
            norms scale the softmax, and between unit vectors, without a temperature, it stays flat.
        reduction: "mean" or None, see `RankingLoss`.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. Where they are
    not normalised, dot products are to be finite: no norms above 1e18 in float32.

    A query without another image of its class has no loss and no gradient, and is left out of the mean;
    one with positives but no negatives counts, with 0.

    Reference: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016.
    Memory: about three matrices `[batch, batch]`.

    >>> loss = NPairsLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.4495
    """

    def __init__(self, normalize: bool = False, *, reduction: str | None = "mean", name: str = "n_pairs"):
        super().__init__(n_pairs_loss, {}, reduction=reduction, name=name)
        self.normalize = checks.boolean("normalize", normalize)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "normalize": self.normalize}
