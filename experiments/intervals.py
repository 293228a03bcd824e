"""Intervals of means over seeds and classes."""

from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A mean and the ends of its interval; `real` says that 0 lies outside of it."""

    mean: float
    low: float
    high: float

    @property
    def real(self) -> bool:
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
    The quantiles are those that would give Student's t interval for means of so many seeds (the expanded
    percentile interval of Hesterberg, 2015), since few seeds spread too little.
    """
    seeds, classes = values.shape
    mean = float(np.mean(values))
    if seeds < 2:
        return Interval(mean, -np.inf, np.inf)
    generator = np.random.default_rng(seed)
    seed_weights = generator.multinomial(seeds, np.full(seeds, 1 / seeds), samples) / seeds
    class_weights = generator.multinomial(classes, np.full(classes, 1 / classes), samples) / classes
    means = np.einsum("ns,sc,nc->n", seed_weights, values, class_weights, optimize=True)
    share = stats.norm.cdf(np.sqrt(seeds / (seeds - 1)) * stats.t.ppf((1 - confidence) / 2, seeds - 1))
    low, high = np.quantile(means, [share, 1 - share])
    return Interval(mean, float(low), float(high))
