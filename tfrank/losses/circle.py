"""Circle loss (Sun et al., CVPR 2020, arXiv 2002.10857)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.log_sum_exp import log_sum_exp
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Scalar, Sharpness


def _kernel(block: Block, margin, gamma):
    pull_weights = gamma * tf.nn.relu(1 + margin - block.s)
    push_weights = gamma * tf.nn.relu(block.s + margin)
    pull = pull_weights * (1 - margin - block.s)
    push = push_weights * (block.s - margin)
    pull, pull_shares = log_sum_exp(tf.where(block.positive_mask, pull, -float("inf")))
    push, push_shares = log_sum_exp(tf.where(block.negative_mask, push, -float("inf")))
    # log(1 + exp(x)) is softplus(x), of slope sigmoid(x).
    slopes = push_shares * push_weights - pull_shares * pull_weights
    return tf.math.softplus(push + pull)[:, 0], tf.sigmoid(push + pull) * slopes


def circle_loss(
    *rows: tf.Tensor,
    margin: Scalar,
    gamma: Scalar,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_circle of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `CircleLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    return score_rows(_kernel, *rows, margin, gamma, needs_negatives=True)


@keras.saving.register_keras_serializable("tfrank")
class CircleLoss(RankingLoss):
    """Pulls positives and pushes negatives, each the harder the farther it is from its optimum.

        a_p = [1 + m - s_p]_+, a_n = [s_n + m]_+
        L_q = log(1 + sum over negatives of exp(gamma a_n (s_n - m))
                    * sum over positives of exp(-gamma a_p (s_p - (1 - m))))

    The weights a are constants to the gradient. The boundary between similarities of positives and
    negatives is a circle: (1 - s_p)^2 + s_n^2 = 2 m^2.

    Args:
        margin: m, at least 0: the similarity of a positive may be m below 1, that of a negative m above 0.
            Default 0.4 (fine-grained retrieval).
        gamma: scale of the similarities, positive. Default 80 (fine-grained retrieval).
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class, or without an image of another class, has no loss, no
    gradient, and is left out of the mean.

    Reference: Sun et al., Circle Loss: A Unified Perspective of Pair Similarity Optimization, CVPR 2020,
    arXiv 2002.10857. Memory: about three matrices `[batch, batch]`.

    >>> loss = CircleLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    117.7908
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 0.4,
        *,
        gamma: Sharpness = 80.0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "circle",
    ):
        hyper_parameters = dict(margin=margin, gamma=gamma)
        super().__init__(
            circle_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
