"""mAP_Q: listwise Average Precision from quantised similarities (Revaud et al., arXiv 1906.07589)."""

import functools
from typing import Annotated, Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core import scalars
from tfrank.losses.core.binned_ap import histogram_kernel
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import score_rows
from tfrank.losses.core.scalars import Scalar

_kernel = functools.cache(histogram_kernel)


def quantized_ap_loss(
    *rows: tf.Tensor,
    num_bins: int,
    tie_aware: bool,
    minimum: Scalar,
    include_self: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - AP_Q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `QuantizedAPLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    return score_rows(_kernel(num_bins, tie_aware), *rows, minimum, include_self=include_self)


@keras.saving.register_keras_serializable("tfrank")
class QuantizedAPLoss(RankingLoss):
    """One minus Average Precision, with similarities soft-binned into a histogram.

        b_m = 1 - (m - 1) D, D = (1 - minimum) / (M - 1)  M bin centres on [minimum, 1]
        delta(s, m) = max(1 - |s - b_m| / D, 0)                                       (eq. 7)
        h_m, h+_m = sum of delta(s_j, m) over all j, over the positives
        P_m = sum_{m' <= m} h+_m' / sum_{m' <= m} h_m'     0 if the denominator is 0  (eq. 9)
        L_q = 1 - sum_m P_m h+_m / |P|                                                (eq. 10, 11)

    With `tie_aware` (mAP_T) the members of a bin are in random order instead of all at its end:
        P_m = (1 + h+_m + 2 sum_{m' < m} h+_m') / (1 + h_m + 2 sum_{m' < m} h_m')     (eq. 13)

    Args:
        num_bins: M, at least 2. Default 20 (section 4.2, "Score quantization").
        tie_aware: eq. 13 instead of eq. 9. Default False, which the paper found better.
        minimum: centre of the last bin, -1 to below 1, in which all smaller similarities count. Default -1:
            the paper's interval. The authors' `APLoss` has 25 bins on [0, 1]: `num_bins=25, minimum=0.0`.
        class_weights: whether every class of the global batch has the same weight, whatever its number of
            queries: w_q = 1 / (number of valid queries of q's class). Gains 1 to 3 % mAP on unbalanced data
            (Fig. 7). Default False: eq. 12.
        include_self: whether the query also counts as a positive of itself, as in eq. 12. Default False.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Revaud et al., Learning with Average Precision: Training Image Retrieval with a Listwise
    Loss, ICCV 2019, arXiv 1906.07589. Memory: about three matrices `[batch, batch]`; the time of the
    histogram is proportional to M.

    >>> loss = QuantizedAPLoss(num_bins=20)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.6773
    """

    @checks.arguments
    def __init__(
        self,
        num_bins: Annotated[int, functools.partial(checks.integer, at_least=2)] = 20,
        *,
        tie_aware: bool = False,
        minimum: Annotated[Scalar, functools.partial(scalars.number, at_least=-1, below=1)] = -1.0,
        class_weights: bool = False,
        include_self: bool = False,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "map_q",
    ):
        hyper_parameters = dict(
            num_bins=num_bins, tie_aware=tie_aware, minimum=minimum, include_self=include_self
        )
        super().__init__(
            quantized_ap_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.class_weights = class_weights

    def weigh(self, labels: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The weights; with `class_weights`, divided by the number of valid queries of the query's class."""
        weights = super().weigh(labels, valid, weights)
        if not self.class_weights:
            return weights
        all_labels = distributed.gather_rows(labels)
        order = tf.argsort(all_labels)
        in_order = tf.gather(all_labels, order)
        all_valid = distributed.gather_rows(tf.cast(valid, tf.int32))
        valid_before = tf.pad(tf.cumsum(tf.gather(all_valid, order)), [[1, 0]])
        first, end = (tf.searchsorted(in_order, labels, side) for side in ("left", "right"))
        valid_of_class = tf.gather(valid_before, end) - tf.gather(valid_before, first)
        return weights / tf.cast(tf.maximum(valid_of_class, 1), weights.dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "class_weights": self.class_weights}
