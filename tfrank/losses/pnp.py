"""PNP: penalise only the negatives before each positive (Li et al., AAAI 2022, arXiv 2102.04640)."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core import scalars
from tfrank.losses.core.grid_ranks import sigmoid_kernel
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import Positive, Scalar
from tfrank.losses.core.tails import x_minus_log1p

Variant = Literal["o", "iu", "ib", "ds", "dq"]


def penalty(variant: Variant, alpha: float, b: float) -> Callable[[tf.Tensor], tf.Tensor]:
    """The penalty of R = R(i, S_N) negatives before a positive; equation numbers are those of the paper."""
    return {
        "o": lambda R: R,  # eq. 5
        "iu": lambda R: (1 + R) * tf.math.log1p(R),  # eq. 7
        "ib": lambda R: x_minus_log1p(b * R) / b**2,  # eq. 9
        "ds": lambda R: tf.math.log1p(R),  # eq. 12
        "dq": lambda R: -tf.math.expm1(-alpha * tf.math.log1p(R)),  # eq. 13
    }[variant]


@functools.cache
def _kernel(variant):
    def kernel(block: Block, alpha, b, temperature):
        return sigmoid_kernel(penalty(variant, alpha, b), temperature, positives=False)(block)

    return kernel


def _warming_kernel(block: Block, alpha, exponent, temperature):
    """The kernel of the warm-up from Ds to Dq, see `PNPLoss`; the exponent is a."""

    def warming(R):
        return -alpha / exponent * tf.math.expm1(-exponent * tf.math.log1p(R))

    return sigmoid_kernel(warming, temperature, positives=False)(block)


def pnp_loss(
    *rows: tf.Tensor,
    variant: Variant,
    alpha: Scalar,
    b: Scalar,
    temperature: Scalar,
    include_self: bool,
    exponent: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """PNP loss of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `PNPLoss`. Takes its arguments and those of `score_rows`; embeddings have unit
    norm. `exponent` is a of the warm-up, a scalar; None means no warm-up.
    """
    if exponent is not None:
        numbers = alpha, exponent, temperature
        return score_rows(_warming_kernel, *rows, *numbers, include_self=include_self)
    return score_rows(_kernel(variant), *rows, alpha, b, temperature, include_self=include_self)


@keras.saving.register_keras_serializable("tfrank")
class PNPLoss(RankingLoss):
    """Penalises the number of negatives that rank before each positive.

        R_i = sum over negatives j of sigmoid((s_j - s_i) / temperature)        (eq. 2, 3)
        L_q = 1/|P| sum over positives i of f(R_i)

        variant   f(R)                          f'(R)                     eq.
        "o"       R                             1                         5
        "iu"      (1 + R) log(1 + R)            1 + log(1 + R)            7
        "ib"      (b R - log(1 + b R)) / b^2    R / (1 + b R)             9, 8
        "ds"      log(1 + R)                    1 / (1 + R)               12, 10
        "dq"      1 - (1 + R)^-alpha            alpha (1 + R)^-(alpha+1)  13, 11

    With "i" the derivative increases: hard positives are pulled harder. With "d" it decreases: positives
    behind many negatives are treated as another cluster and left alone, which gives the best results in the
    paper. With random weights every positive is behind many negatives, so "dq" leaves nearly all of them
    alone and learns nothing. `warmup_steps` = W (ours, not in the paper) starts near "ds" and ends at "dq".
    At step t

        f(R) = alpha / a (1 - (1 + R)^-a),   f'(R) = alpha (1 + R)^-(a+1),   a = alpha min((t + 1) / W, 1)

    which is alpha log(1 + R) for a -> 0, and "dq" from step W - 1 on.

    "iu" is eq. 7 as in the paper and the published code. Its derivative is larger by 1 than in eq. 6.

    Args:
        variant: "o", "iu", "ib", "ds" or "dq".
        alpha: steepness of "dq", at least 1. Default 4. Larger is better until gradients explode
            (section "Impact of Hyper-parameters").
        b: bound of "ib", positive; f' stays below 1/b. Default 4: best on SOP (same section).
        temperature: temperature of the sigmoid, positive. Default 0.01 (section "Experimental Setup").
        include_self: whether the query also counts as a positive of itself, as in the published code.
        warmup_steps: W, for "dq" only, at least 0; 0 means no warm-up. `fit`
            tells the step; elsewhere set `loss.iteration = optimizer.iterations`.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Li et al., Rethinking the Optimization of Average Precision, AAAI 2022,
    arXiv 2102.04640. Memory: about three matrices `[batch, batch]`.

    >>> loss = PNPLoss("dq")
    >>> round(float(loss([0, 0, 1, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 6)
    0.0
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.9626
    """

    @checks.arguments
    def __init__(
        self,
        variant: Variant = "dq",
        *,
        alpha: Annotated[Scalar, functools.partial(scalars.number, at_least=1)] = 4.0,
        b: Positive = 4.0,
        temperature: Positive = 0.01,
        include_self: bool = False,
        warmup_steps: checks.NonNegativeInt = 0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "pnp",
    ):
        hyper_parameters = dict(
            variant=variant, alpha=alpha, b=b, temperature=temperature, include_self=include_self
        )
        super().__init__(
            pnp_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.warmup_steps = warmup_steps

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the hyper-parameters of this loss at this step."""
        if not self.warmup_steps or self.hyper_parameters["variant"] != "dq":
            return super()._score(*rows)
        steps = tf.cast(tf.minimum(self.steps_taken() + 1, self.warmup_steps), tf.float64)
        exponent = scalars.tensor(self.hyper_parameters["alpha"], tf.float64) * steps / self.warmup_steps
        return pnp_loss(*rows, **self.hyper_parameters, exponent=exponent)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "warmup_steps": self.warmup_steps}
