"""Intervals of means over seeds and classes."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean and the ends of its interval; `significant` says that 0 lies outside of it."""

    mean: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """In percent: "1.23 (0.20 to 2.26)"."""
        return f"{100 * self.mean:.2f} ({100 * self.low:.2f} to {100 * self.high:.2f})"


def over_seeds(values: np.ndarray, confidence: float = 0.95) -> Interval:
    """Mean of `[seeds]` values with Student's t interval."""
    mean = float(np.mean(values))
    half = (
        stats.sem(values) * stats.t.ppf((1 + confidence) / 2, len(values) - 1) if len(values) > 1 else np.inf
    )
    return Interval(mean, mean - half, mean + half)


def over_seeds_and_classes(
    values: np.ndarray, *, confidence: float = 0.95, samples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of `[seeds, classes]` values, such as differences of two losses, with a bootstrap interval.

    Each sample draws as many seeds and as many classes, with replacement, and takes the mean of their values.
    Few seeds, or classes, spread too little. So the quantiles are those that would give Student's t interval
    for normal means (the expanded percentile interval of Hesterberg, 2015), with the degrees of freedom of
    Satterthwaite for a sum of two variances, of seeds and of classes. Of normal values, 95 % intervals held
    the truth in 94 % of trials with 3 seeds and 25 classes, but in 86 % where seeds differed five times as
    much as classes.
    """
    seeds, classes = values.shape
    mean = float(np.mean(values))
    if seeds < 2:
        return Interval(mean, -np.inf, np.inf)
    counts = np.array([seeds, classes])
    variances = np.array([np.var(values.mean(axis=1 - axis), ddof=1) for axis in (0, 1)]) / counts
    if not variances.any():
        return Interval(mean, mean, mean)
    freedom = variances.sum() ** 2 / np.sum(variances**2 / (counts - 1))
    widened = np.sqrt(variances.sum() / np.sum(variances * (counts - 1) / counts))
    share = stats.norm.cdf(widened * stats.t.ppf((1 - confidence) / 2, freedom))

    generator = np.random.default_rng(seed)
    seed_weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), samples) / seeds
    class_weights = generator.multinomial(classes, np.full(classes, 1 / classes), samples) / classes
    means = np.einsum("ns,sc,nc->n", seed_weights, values, class_weights, optimize=True)
    low, high = np.quantile(means, [share, 1 - share])
    return Interval(mean, float(low), float(high))
