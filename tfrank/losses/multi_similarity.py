"""Multi-similarity loss (Wang et al., CVPR 2019, arXiv 1904.06627)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.log_sum_exp import log_sum_exp
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Number, Scalar, Sharpness


def _kernel(block: Block, alpha, beta, threshold, epsilon):
    infinity = float("inf")
    farthest = tf.reduce_min(tf.where(block.positive_mask, block.s, infinity), axis=1, keepdims=True)
    nearest = tf.reduce_max(tf.where(block.negative_mask, block.s, -infinity), axis=1, keepdims=True)
    pulled = block.positive_mask & (block.s < nearest + epsilon)
    pushed = block.negative_mask & (block.s > farthest - epsilon)
    pull, pull_shares = log_sum_exp(tf.where(pulled, -alpha * (block.s - threshold), -infinity))
    push, push_shares = log_sum_exp(tf.where(pushed, beta * (block.s - threshold), -infinity))
    # log(1 + exp(x)) is softplus(x), of slope sigmoid(x).
    losses = tf.math.softplus(pull) / alpha + tf.math.softplus(push) / beta
    return losses[:, 0], tf.sigmoid(push) * push_shares - tf.sigmoid(pull) * pull_shares


def multi_similarity_loss(
    *rows: tf.Tensor,
    alpha: Scalar,
    beta: Scalar,
    threshold: Scalar,
    epsilon: Scalar,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_MS of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `MultiSimilarityLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    return score_rows(_kernel, *rows, alpha, beta, threshold, epsilon, needs_negatives=True)


@keras.saving.register_keras_serializable("tfrank")
class MultiSimilarityLoss(RankingLoss):
    """Mines pairs that are badly placed relative to the query's other pairs, and weights them softly.

        P* = positives with s_p < max over negatives of s_n + epsilon
        N* = negatives with s_n > min over positives of s_p - epsilon              (pair mining)
        L_q = 1/alpha log(1 + sum over P* of exp(-alpha (s_p - threshold)))
            + 1/beta log(1 + sum over N* of exp(beta (s_n - threshold)))           (pair weighting)

    The choice of mined pairs is a constant to the gradient. Similarities differ by at most 2, so an epsilon
    above 2 keeps every pair.

    Args:
        alpha: sharpness of the weights of positives, positive; larger values favour the farthest. Default 2.
        beta: sharpness of the weights of negatives, positive; larger values favour the nearest. Default 50.
        threshold: the similarity around which pairs are weighted, lambda in the paper. Default 0.5, as in the
            authors' published code.
        epsilon: margin of the mining, at least 0: the larger, the more pairs. Default 0.1.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class, or without an image of another class, has no loss, no
    gradient, and is left out of the mean. A query with both but without a mined pair is valid, with loss 0.

    Reference: Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning,
    CVPR 2019, arXiv 1904.06627. Memory: about three matrices `[batch, batch]`.

    >>> loss = MultiSimilarityLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.0753
    """

    @checks.arguments
    def __init__(
        self,
        alpha: Sharpness = 2.0,
        *,
        beta: Sharpness = 50.0,
        threshold: Number = 0.5,
        epsilon: NonNegative = 0.1,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "multi_similarity",
    ):
        hyper_parameters = dict(alpha=alpha, beta=beta, threshold=threshold, epsilon=epsilon)
        super().__init__(
            multi_similarity_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
