"""The learning rate as a function of the step."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks

SCHEDULES = ("constant", "linear", "cosine", "steps")


def build_schedule(
    name: str,
    learning_rate: float,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    boundaries: Sequence[int] = (),
    factor: float = 0.1,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning-rate schedule of that name, for steps t = 0, 1, ..., T - 1.

    t is Keras' `optimizer.iterations` before the update.

    With T = `total_steps` and W = `warmup_steps`, warmup(t) = min((t + 1) / W, 1), or 1 where W = 0:

        constant  rate(t) = learning_rate warmup(t)
        linear    rate(t) = learning_rate warmup(t) (1 - t / T)
        cosine    rate(t) = learning_rate warmup(t) (1 + cos(pi (t - W) / (T - W))) / 2, for t >= W
        steps     rate(t) = learning_rate warmup(t) factor^(number of boundaries <= t)

    The rate depends on t alone, so a resumed run continues exactly. From T on, linear and cosine stay at 0,
    and the others at the rate of step T - 1.

    Sources: linear is from Revaud et al. (arXiv 1906.07589, section 4.2: from 1e-4 to 0 in 200 steps);
    cosine from Loshchilov and Hutter (arXiv 1608.03983, eq. 5), a single cycle down to 0; warm-up from Goyal
    et al. (arXiv 1706.02677, section 2.2), starting at 1 / W.

    Args:
        name: one of `SCHEDULES`.
        learning_rate: the highest rate, above 0.
        total_steps: number of steps of the whole run, at least 1.
        warmup_steps: from 0 to `total_steps`.
        boundaries: for "steps" only: the steps at which the rate falls, ascending and above 0. Boundaries at
            or beyond `total_steps` are never reached.
        factor: for "steps": the factor at each boundary, above 0 and at most 1.

    Raises:
        InputError: an argument is out of its range.

    >>> linear = build_schedule("linear", 1e-4, total_steps=200)
    >>> [f"{float(linear(step)):.2e}" for step in (0, 100, 199, 200)]
    ['1.00e-04', '5.00e-05', '5.00e-07', '0.00e+00']
    """
    return Schedule(
        name,
        learning_rate,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        boundaries=boundaries,
        factor=factor,
    )


@keras.saving.register_keras_serializable("tfrank")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule that `build_schedule` returns; see there for the arguments."""

    def __init__(self, name, learning_rate, *, total_steps, warmup_steps=0, boundaries=(), factor=0.1):
        self.name = checks.one_of("schedule", name, SCHEDULES)
        self.learning_rate = checks.number("learning_rate", learning_rate, above=0)
        self.total_steps = checks.integer("total_steps", total_steps, at_least=1)
        self.warmup_steps = checks.integer("warmup_steps", warmup_steps, at_least=0)
        if self.warmup_steps > self.total_steps:
            raise checks.invalid(
                "warmup_steps", f"at most total_steps, which is {self.total_steps}", warmup_steps
            )
        self.boundaries = ()
        if name == "steps":
            self.boundaries = _ascending(boundaries)
        elif boundaries not in ((), []):
            raise checks.invalid(
                "boundaries", f'none for the schedule "{name}", only for "steps"', boundaries
            )
        self.factor = checks.number("factor", factor, above=0, at_most=1)

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate at a step or at a tensor of steps, in Keras' float type."""
        # float32 cannot distinguish step 2^24 from the next, and t / T is accurate only to 1e-7 near T.
        step = tf.cast(step, tf.float64)
        rate = self.learning_rate * self._shape(step)
        if self.warmup_steps:
            rate *= tf.minimum((step + 1) / self.warmup_steps, 1)
        return tf.cast(rate, keras.config.floatx())

    def _shape(self, step):
        """The rate at a step as a share of the highest rate, without warm-up."""
        remaining = self.total_steps - step
        if self.name == "linear":
            return tf.clip_by_value(remaining / self.total_steps, 0, 1)
        if self.name == "cosine":
            # Avoid a division by 0 if the whole run is warm-up.
            length = max(self.total_steps - self.warmup_steps, 1)
            # (1 + cos(pi (1 - r))) / 2 = sin^2(pi r / 2), which is exactly 0 at r = 0.
            return tf.sin(math.pi / 2 * tf.clip_by_value(remaining / length, 0, 1)) ** 2
        if self.name == "steps":
            last = tf.minimum(step, self.total_steps - 1)
            passed = last[..., None] >= tf.constant(self.boundaries, tf.float64)
            return tf.constant(self.factor, tf.float64) ** tf.reduce_sum(tf.cast(passed, tf.float64), axis=-1)
        return tf.ones_like(step)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "name": self.name,
            "learning_rate": self.learning_rate,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "boundaries": list(self.boundaries),
            "factor": self.factor,
        }


def _ascending(boundaries):
    steps = checks.sequence("boundaries", boundaries, checks.integer, at_least=1)
    if any(after <= before for before, after in itertools.pairwise(steps)):
        raise checks.invalid("boundaries", "steps in ascending order", boundaries)
    return steps
