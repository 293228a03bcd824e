"""Is one model better than another on the same queries? By how much, and how sure is that?"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.parallel import in_parallel

# Values drawn at a time by a thread: 16 MiB of their places.
BLOCK_DRAWS = 2**21

# All of G groups of two equal models, and so all means drawn from them, lie on one side of 0 with probability
# 2 / 2^G: 6 % for five, 12 % for four. No choice of quantiles helps against that.
FEWEST_GROUPS = 5


class Comparison(NamedTuple):
    """How much better the second of two models is.

    Attributes:
        difference: mean over queries of after - before.
        low, high: its confidence interval. Where 0 lies outside, the difference is no chance of the queries.
            -inf and inf below `FEWEST_GROUPS` groups, which are too few for an interval: nothing is claimed.
        queries: how many were compared.
    """

    difference: float
    low: float
    high: float
    queries: int


def paired_bootstrap(
    before: np.ndarray,
    after: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The mean difference of a metric between two models, with its expanded percentile interval.

    As many queries as there are, with their pairs of values, are drawn with replacement, `samples` times; the
    interval lies between two quantiles of the mean differences. Queries of one class are found or missed
    together, so an interval from single queries is too narrow for what other classes would give: with
    `groups`, whole classes are drawn. Means drawn from few groups spread too little, and by how much is
    itself uncertain, so the interval holds more than the middle share `confidence` of them: as much as makes
    it Student's where they are normal (Hesterberg: What Teachers Should Know About the Bootstrap, 2015,
    expanded percentile interval). Below five groups it is -inf to inf: by chance all are on one side of 0
    too often. 60,000 queries and 10,000 samples take some seconds.

    Args:
        before: `[queries]` a metric of each query by one model, as from `metrics.per_query`.
        after: `[queries]` by the other. A query that is not finite in both is left out, such as a lone one.
        groups: `[queries]` integers, such as labels; queries of a group are drawn together. None: each alone.
        samples: how many times to draw.
        confidence: above 0, below 1.
        seed: of what is drawn.

    Raises:
        InputError: lengths differ, no query has both values, or a bad argument.

    >>> before = np.array([0.0, 0.5, 0.25, 0.75, 0.0, np.nan])
    >>> paired_bootstrap(before, before + 0.25)
    Comparison(difference=0.25, low=0.25, high=0.25, queries=5)
    >>> paired_bootstrap(before[:4], before[:4] + 0.25)
    Comparison(difference=0.25, low=-inf, high=inf, queries=4)
    """
    samples = checks.integer("samples", samples, at_least=1)
    seed = checks.integer("seed", seed, at_least=0)
    confidence = checks.number("confidence", confidence, above=0, below=1)
    groups = np.arange(len(before)) if groups is None else groups
    if not len(before) == len(after) == len(groups):
        raise InputError(
            "The values to compare are not of the same queries. Expected one length for `before`, `after` and"
            f" `groups`. Received: {len(before)}, {len(after)} and {len(groups)}."
        )
    both = np.isfinite(before) & np.isfinite(after)
    if not both.any():
        raise InputError("There is no query with a value of both models, so there is nothing to compare.")
    differences = np.asarray(after, np.float64)[both] - np.asarray(before, np.float64)[both]
    _, number = np.unique(groups[both], return_inverse=True)
    sums, sizes = np.bincount(number, differences), np.bincount(number)
    low, high = -math.inf, math.inf
    if len(sums) >= FEWEST_GROUPS:
        share = _expanded((1 - confidence) / 2, len(sums))
        low, high = np.quantile(_resampled_means(sums, sizes, samples, seed), [share, 1 - share])
    return Comparison(float(np.mean(differences)), float(low), float(high), len(differences))


def _expanded(share: float, groups: int) -> float:
    """What share of resampled means lies beyond the bound of Student's t that `share` lies beyond.

    They are taken as normal, and narrower by sqrt((groups - 1) / groups) than Student's t supposes.

    >>> round(_expanded(0.025, 5), 4), round(_expanded(0.025, 10**6), 4)
    (0.001, 0.025)
    """
    return float(stats.norm.cdf(math.sqrt(groups / (groups - 1)) * stats.t.ppf(share, groups - 1)))


def _resampled_means(sums: np.ndarray, sizes: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """`[samples]` means over the members of groups drawn with replacement, as many groups as there are."""
    rows = max(1, BLOCK_DRAWS // len(sums))
    starts = range(0, samples, rows)

    def means(task):
        start, block_seed = task
        shape = [min(rows, samples - start), len(sums)]
        drawn = np.random.default_rng(block_seed).integers(len(sums), size=shape, dtype=np.int32)
        return sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)

    seeds = np.random.SeedSequence(seed).spawn(len(starts))
    return np.concatenate(list(in_parallel(means, zip(starts, seeds))))
