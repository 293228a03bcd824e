"""Supervised contrastive loss (Khosla et al., NeurIPS 2020, arXiv 2004.11362)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import Positive, Scalar
from tfrank.losses.core.tails import shared_entropy


def _kernel(block: Block, temperature):
    targets = tf.cast(block.positive_mask, block.s.dtype) / block.positives[:, None]
    losses, slopes = shared_entropy(block.s / temperature, targets, block.candidate_mask)
    return losses, slopes / temperature


def sup_con_loss(
    *rows: tf.Tensor,
    temperature: Scalar,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_out of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `SupConLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    return score_rows(_kernel, *rows, temperature)


@keras.saving.register_keras_serializable("tfrank")
class SupConLoss(RankingLoss):
    """Softmax over the batch, in which the positives of a query share the right answer equally.

        L_q = -1/|P| sum over positives p of log(exp(s_p / t) / sum over j of exp(s_j / t))        (eq. 2)

    where j runs over all images of the batch but the query. With two images of each class this is NT-Xent
    (SimCLR, arXiv 2002.05709).

    The authors' code multiplies this by t / 0.07. A batch of one class has a loss too, at best log |P|.

    Args:
        temperature: t, positive. Default 0.1 (section 4).
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, arXiv 2004.11362. Memory: about
    three matrices `[batch, batch]`.

    >>> loss = SupConLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    8.8417
    """

    @checks.arguments
    def __init__(
        self,
        temperature: Positive = 0.1,
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "sup_con",
    ):
        super().__init__(
            sup_con_loss,
            {"temperature": temperature},
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )
