"""Ranked List Loss (Wang et al., CVPR 2019 and TPAMI 2021, arXiv 1903.03238)."""

from functools import partial
from typing import Annotated, Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core import scalars
from tfrank.losses.core.distances import unit_distances
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Positive, Scalar, Share


def _kernel(block: Block, margin, alpha, positive_temperature, negative_weight, negative_temperature):
    """Computes eq. 8 to 13 on a block of rows."""

    _, distance, slope = unit_distances(block.s)
    near, far = alpha - distance, distance - (alpha - margin)  # eq. 8, without its hinges
    negative_loss, w_n = _mined_mean(near, block.negative_mask, negative_temperature)
    positive_loss, w_p = _mined_mean(far, block.positive_mask, positive_temperature)

    losses = (1 - negative_weight) * positive_loss + negative_weight * negative_loss  # eq. 13
    rates = (1 - negative_weight) * w_p - negative_weight * w_n  # dL/dd
    return losses, rates * slope


def _mined_mean(violation, candidates, temperature):
    """The weighted mean of the violations above 0 (eq. 9 to 12), and the weights, constants to the gradient.

    Subtracts the maximum exponent before exponentiating, so that no temperature overflows. An empty mined set
    gives 0.
    """
    mined = candidates & (violation > 0)
    sign = tf.where(temperature < 0, -tf.ones_like(temperature), tf.ones_like(temperature))
    rising = tf.where(mined, sign * violation, violation.dtype.min)
    largest = sign * tf.reduce_max(rising, axis=1, keepdims=True)
    weights = tf.where(mined, tf.exp(temperature * (violation - largest)), tf.zeros_like(violation))
    weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=1, keepdims=True))
    return tf.reduce_sum(weights * violation, axis=1), weights


def ranked_list_loss(
    *rows: tf.Tensor,
    margin: Scalar,
    alpha: Scalar,
    negative_temperature: float | tf.Tensor,
    positive_temperature: Scalar,
    negative_weight: Scalar,
    constant_gallery: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_RLL of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `RankedListLoss`. Takes the arguments of `score_rows`; embeddings have unit
    norm.
    """
    numbers = margin, alpha, positive_temperature, negative_weight, negative_temperature
    return score_rows(_kernel, *rows, *numbers, constant_gallery=constant_gallery)


@keras.saving.register_keras_serializable("tfrank")
class RankedListLoss(RankingLoss):
    """Pulls positives within a distance alpha - m of the query and pushes negatives beyond alpha.

        d_j = |q - x_j|, between unit vectors                                                  (0 to 2)
        P* = positives with d_j > alpha - m, N* = negatives with d_j < alpha       (section 3.2.1)
        w_j = exp(T_p (d_j - (alpha - m))) in P*, exp(T_n (alpha - d_j)) in N*             (eq. 9, 10)
        L_P = sum of w_j (d_j - (alpha - m)) over P* / sum of w_j over P*                  (eq. 11)
        L_N = sum of w_j (alpha - d_j) over N* / sum of w_j over N*                        (eq. 12)
        L_q = (1 - lambda) L_P + lambda L_N                                                (eq. 13)

    The weights are constants to the gradient; an empty mined set gives 0.

    T_n can change linearly over training (eq. 15, 16): from `negative_temperature` at step 0 to
    `final_negative_temperature` at step `decay_steps`, where it stays. `fit` tells the step;
    elsewhere set `loss.iteration = optimizer.iterations`.

    Args:
        margin: m between the two boundaries, 0 to alpha. Default 0.4 (sections 4.4 to 4.7).
        alpha: distance beyond which negatives are pushed, positive. Default 1.2 (best in Table 7).
        negative_temperature: T_n, at least 0. The larger, the more weight the nearest negatives have. Default
            10 (best in Table 8).
        positive_temperature: T_p. Above 0 far positives have more weight, below 0 near ones. Default 0
            (section 3.4).
        negative_weight: lambda, 0 to 1. Default 0.5 (section 3.2.4).
        constant_gallery: whether the other examples are constants, so that a query's loss moves only the
            query. Default True (section 3.2.4).
        final_negative_temperature: T_2 of eq. 15. Default 0; read only if decay_steps is not 0.
        decay_steps: max_iter of eq. 15. Default 0: T_n is fixed.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean. A
    query with positives but without a mined pair is valid, with loss 0.

    Reference: Wang et al., Ranked List Loss for Deep Metric Learning, CVPR 2019, TPAMI 2021,
    arXiv 1903.03238. Memory: about three matrices `[batch, batch]`.

    >>> loss = RankedListLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.8106
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 0.4,
        *,
        alpha: Positive = 1.2,
        negative_temperature: Annotated[Scalar, partial(scalars.number, at_least=0, at_most=1e30)] = 10.0,
        positive_temperature: Annotated[Scalar, partial(scalars.number, at_least=-1e30, at_most=1e30)] = 0.0,
        negative_weight: Share = 0.5,
        constant_gallery: bool = True,
        final_negative_temperature: Annotated[float, partial(checks.number, at_least=0, at_most=1e30)] = 0.0,
        decay_steps: checks.NonNegativeInt = 0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "rll",
    ):
        hyper_parameters = dict(
            margin=margin,
            alpha=alpha,
            negative_temperature=negative_temperature,
            positive_temperature=positive_temperature,
            negative_weight=negative_weight,
            constant_gallery=constant_gallery,
        )
        if scalars.current(margin) > scalars.current(alpha):
            expected = f"a number of at most alpha={scalars.current(alpha):g}"
            raise checks.invalid("margin", expected, scalars.current(margin))
        super().__init__(
            ranked_list_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.final_negative_temperature, self.decay_steps = final_negative_temperature, decay_steps

    @classmethod
    def simpler(cls, margin: float, negative_temperature: float, **arguments: Any) -> "RankedListLoss":
        """RLL-Simpler (section 3.4): alpha = 1 + m / 2, so the boundaries are symmetric about 1, and T_p = 0.

        With m = 0.4, alpha is 1.2: the defaults of the full version are those of RLL-Simpler.

        >>> RankedListLoss.simpler(0.6, 10.0).get_config()["alpha"]
        1.3
        """
        margin = checks.number("margin", margin, at_least=0)
        return cls(
            margin,
            alpha=1 + margin / 2,
            negative_temperature=negative_temperature,
            positive_temperature=0.0,
            **arguments,
        )

    def current_negative_temperature(self) -> tf.Tensor | float:
        """T_n at this step (eq. 15); the given number or variable if T_n is fixed."""
        first = self.hyper_parameters["negative_temperature"]
        if not self.decay_steps:
            return first
        done = tf.cast(tf.minimum(self.steps_taken(), self.decay_steps), tf.float64) / self.decay_steps
        first, last = (scalars.tensor(n, tf.float64) for n in (first, self.final_negative_temperature))
        return first - done * (first - last)

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the hyper-parameters of this loss at this step."""
        now = self.hyper_parameters | {"negative_temperature": self.current_negative_temperature()}
        return ranked_list_loss(*rows, **now)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        schedule = {
            "final_negative_temperature": self.final_negative_temperature,
            "decay_steps": self.decay_steps,
        }
        return {**super().get_config(), **schedule}
