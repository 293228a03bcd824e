"""N-pair-mc loss (Sohn, NIPS 2016)."""

from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.log_sum_exp import log_sum_exp
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows


def _kernel(block: Block):
    """The kernel of N-pairs; one log-sum-exp serves all positives.

    log(1 + sum_j exp(s_j - s_i)) = softplus(x_i), with x_i = log(sum_j exp(s_j)) - s_i.
    """
    zero = tf.zeros_like(block.s)
    total, shares = log_sum_exp(tf.where(block.negative_mask, block.s, -float("inf")))
    x = total - block.s
    weight = 1 / block.positives[:, None]
    losses = tf.reduce_sum(tf.where(block.positive_mask, weight * tf.math.softplus(x), zero), axis=1)
    pulls = tf.where(block.positive_mask, weight * tf.sigmoid(x), zero)
    return losses, tf.reduce_sum(pulls, axis=1, keepdims=True) * shares - pulls


def n_pairs_loss(
    *rows: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `NPairsLoss`. Takes the arguments of `score_rows`, except that embeddings may
    have any norm.
    """
    return score_rows(_kernel, *rows)


@keras.saving.register_keras_serializable("tfrank")
class NPairsLoss(RankingLoss):
    """Separates each positive from all negatives at once: softmax cross-entropy of dot products.

        s_j = q . x_j, of the embeddings without normalisation
        L_q = mean over positives i of log(1 + sum over negatives j of exp(s_j - s_i))

    This is N-pair-mc (eq. 2 of arXiv 1903.03238). Every row of the batch is an anchor, every other row of its
    class is its positive in turn, and all rows of other classes are its negatives. For eq. 2 exactly, with N
    anchors and N positives, use `n_pairs_loss` of the anchors against a gallery of the positives, with
    self_index -1. The paper adds a penalty on the norms of embeddings, which is not part of this loss.

    Args:
        normalize: whether embeddings are L2-normalised first. Default False, unlike most losses: the norms
            scale the softmax, which stays flat for unit vectors, as there is no temperature. Results of
            runs and of the callback are by the cosine even so.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. If they are
    not normalised, dot products must be finite: no norms above 1e18 in float32.

    A query without another image of its class has no loss and no gradient, and is left out of the mean. A
    query with positives but without negatives is valid, with loss 0.

    Reference: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016.
    Memory: about three matrices `[batch, batch]`.

    >>> loss = NPairsLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.4495
    """

    @checks.arguments
    def __init__(
        self,
        normalize: bool = False,
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "n_pairs",
    ):
        super().__init__(n_pairs_loss, {}, reduction=reduction, ignore_label=ignore_label, name=name)
        self.normalize = normalize

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "normalize": self.normalize}
