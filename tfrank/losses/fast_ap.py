"""FastAP: Average Precision from quantised distances (Cakir et al., CVPR 2019)."""

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.map_q import quantized_ap_loss


def fast_ap_loss(
    *rows: tf.Tensor,
    num_bins: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - FastAP of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `FastAPLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    The squared distance is 2 - 2 s, so bin centres 4 / L apart in it are 2 / L apart in s: mAP_Q with L + 1
    bins.
    """
    return quantized_ap_loss(*rows, num_bins=num_bins + 1, tie_aware=False, minimum=-1.0, include_self=False)


@keras.saving.register_keras_serializable("tfrank")
class FastAPLoss(RankingLoss):
    """One minus Average Precision, with squared distances soft-binned into a histogram.

        z_l = 4 l / L, l = 0..L                       L + 1 bin centres on [0, 4], where |x - y|^2 lies
        h_l, h+_l = sum of max(1 - |d_j^2 - z_l| L / 4, 0) over all j, over the positives
        H_l, H+_l = their cumulative sums
        L_q = 1 - 1/|P| sum_l H+_l h+_l / H_l

    The same as mAP_Q with L + 1 bins: FastAPLoss(L) equals QuantizedAPLoss(L + 1).

    Args:
        num_bins: L, at least 1. Default 10 (the authors' code).
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Cakir et al., Deep Metric Learning to Rank, CVPR 2019. Memory: about three matrices
    `[batch, batch]`; the time of the histogram is proportional to L.

    >>> loss = FastAPLoss(num_bins=10)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.6522
    """

    @checks.arguments
    def __init__(
        self,
        num_bins: checks.PositiveInt = 10,
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "fast_ap",
    ):
        super().__init__(
            fast_ap_loss, {"num_bins": num_bins}, reduction=reduction, ignore_label=ignore_label, name=name
        )
