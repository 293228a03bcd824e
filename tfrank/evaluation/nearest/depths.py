"""How deep an approximate search looks for how many neighbours, and the queries to measure it with."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank.evaluation.nearest.exhaustive import exact, share_found
from tfrank.evaluation.nearest.neighbors import Neighbors

# Numbers of neighbours that a search is tuned for. A search for others looks as deep as for the next larger
# one; a search for more than the last is exact.
DEPTHS = (10, 30, 100, 500)
# Number of queries on which the recall is measured, and the largest share of the rows that serve as queries.
SAMPLE, HELD_OUT = 1000, 0.1


class Sample(NamedTuple):
    """Queries that the recall is measured with.

    Attributes:
        queries: `[queries, dim]` of unit norm.
        own: `[queries]` the query's own gallery row, or -1.
        groups: `[queries]` integers. The recall of each group of queries has to reach the target.
    """

    queries: np.ndarray
    own: np.ndarray
    groups: np.ndarray


def held_out(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the rows that stay in the gallery, and of those that are searched for."""
    order = np.random.default_rng(seed).permutation(rows)
    count = min(SAMPLE // 2, int(HELD_OUT * rows))
    return np.sort(order[count:]), np.sort(order[:count])


def new_queries(rows: np.ndarray, gallery: np.ndarray, seed: int = 0) -> Sample:
    """Returns queries that are not in the gallery: these rows, and each of them once more, displaced.

    A displaced row lies as far from the row as the row's nearest neighbour, in a random direction, since
    images of later users may resemble those of the gallery less than these resemble one another.

    Args:
        rows: `[rows, dim]` float32 of unit norm, which the gallery does not have.
        gallery: `[gallery, dim]` float32 of unit norm.
        seed: seed of the directions.
    """
    directions = np.random.default_rng(seed).normal(size=rows.shape)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distance = np.sqrt(np.maximum(0, 2 - 2 * exact(rows, gallery, 1).similarity))
    displaced = rows + distance * directions
    displaced /= np.linalg.norm(displaced, axis=1, keepdims=True)
    queries = np.concatenate([rows, displaced.astype(np.float32)])
    return Sample(queries, np.full(len(queries), -1), np.repeat([0, 1], len(rows)))


def recall_of(found: Neighbors, nearest: Neighbors, sample: Sample, gallery: np.ndarray) -> float:
    """Returns the share of the nearest rows that were found, of the group of queries where it is least."""
    shares = []
    for group in np.unique(sample.groups):
        rows = np.flatnonzero(sample.groups == group)
        some, of_these = (Neighbors(one.index[rows], one.similarity[rows]) for one in (found, nearest))
        shares.append(share_found(some, of_these, sample.queries[rows], gallery, sample.own[rows]))
    return min(shares)


def depth_for(depths: Sequence[Any], k: int) -> Any:
    """Returns the least deep of the depths, which have an attribute `k`, for so many neighbours; or None."""
    return next((depth for depth in depths if depth.k >= k), None)


def in_words(depths: Sequence[Any]) -> str:
    """Returns what the depths, which have the attributes `k` and `recall`, find. No depth: exact search.

    >>> from collections import namedtuple
    >>> Depth = namedtuple("Depth", "k recall")
    >>> in_words([Depth(10, 0.993), Depth(30, 0.991)])
    '99.3 % of the 10 nearest and 99.1 % of the 30 nearest; a search for more than 30 is exact'
    """
    if not depths:
        return "all nearest, since it is exact"
    *first, last = [f"{100 * depth.recall:.1f} % of the {depth.k} nearest" for depth in depths]
    found = f"{', '.join(first)} and {last}" if first else last
    return f"{found}; a search for more than {depths[-1].k} is exact"
