"""The ranks of each query's positives: all that retrieval metrics need, for any K. No lists of neighbours.

Ties are ranked pessimistically: a negative as similar as a positive stands before it. All similarities of a
query come from one product, since two products may round one pair differently.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.parallel import Gallery, in_parallel

# Similarities that a thread holds at a time: 64 MiB in float32.
BLOCK_SIMILARITIES = 2**24
# Up to so many positives of a query, its row is compared with each; with more it is sorted.
FEW_POSITIVES = 8


class Ranks(NamedTuple):
    """The ranks of the positives of every query, from 1, ascending for each query.

    Attributes:
        start: `[queries + 1]` int64: those of query q are `rank[start[q] : start[q + 1]]`.
        rank: `[positives of all queries]` int32.
    """

    start: np.ndarray
    rank: np.ndarray

    @property
    def positives(self) -> np.ndarray:
        """`[queries]` int64, how many positives each query has; 0 for a lone query."""
        return np.diff(self.start)


class Truth(NamedTuple):
    """What each query should find.

    Attributes:
        queries: how many there are.
        positives: from a query's number to the gallery rows that it should find.
        ignored: from a query's number to the gallery rows that are left out of its ranking, such as itself.
    """

    queries: int
    positives: Callable[[int], np.ndarray]
    ignored: Callable[[int], np.ndarray]


def by_label(
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
    self_index: np.ndarray | None = None,
    junk: np.ndarray | None = None,
) -> Truth:
    """A query should find the gallery rows of its label, but for itself.

    Args:
        query_labels: `[queries]` integers.
        gallery_labels: `[gallery]` integers.
        self_index: `[queries]` the query's own gallery row, or -1. None: all -1.
        junk: `[queries, gallery]` bool, rows that are neither positives nor negatives of a query.

    >>> by_label(np.array([7, 8]), np.array([7, 8, 7]), np.array([0, 1])).positives(0)
    array([2])
    """
    order = np.argsort(gallery_labels, kind="stable")
    ordered = gallery_labels[order]
    first = np.searchsorted(ordered, query_labels, side="left")
    last = np.searchsorted(ordered, query_labels, side="right")

    def ignored(query):
        rows = np.flatnonzero(junk[query]) if junk is not None else np.empty(0, np.int64)
        return rows if self_index is None or self_index[query] < 0 else np.append(rows, self_index[query])

    def positives(query):
        rows = order[first[query] : last[query]]
        if self_index is not None:
            rows = rows[rows != self_index[query]]
        return rows if junk is None else rows[~junk[query, rows]]

    return Truth(len(query_labels), positives, ignored)


def by_list(positives: Sequence[np.ndarray], ignored: Sequence[np.ndarray]) -> Truth:
    """A query should find the gallery rows of its list; those of the other list do not count for it."""
    return Truth(len(positives), lambda query: positives[query], lambda query: ignored[query])


def positive_ranks(queries: np.ndarray, gallery: np.ndarray, truth: Truth) -> Ranks:
    """The ranks of the positives of each query among all gallery rows that are not ignored for it.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        truth: what each query should find.
    """
    rows = Gallery(gallery)
    size = max(1, BLOCK_SIMILARITIES // max(len(gallery), 1))

    def ranks_of(start):
        return _ranks_of_block(start, rows.similarities(queries[start : start + size]), truth)

    return concatenated(in_parallel(ranks_of, range(0, len(queries), size)))


def ranks_of_blocks(blocks: Iterable[tuple[int, np.ndarray]], truth: Truth) -> Ranks:
    """As `positive_ranks`, of similarities that were computed elsewhere.

    Args:
        blocks: (first query, `[block, gallery]` similarities, which are overwritten), in order of queries.
        truth: what each query should find.
    """
    return concatenated(_ranks_of_block(start, block, truth) for start, block in blocks)


def concatenated(parts: Iterable[Sequence[np.ndarray]]) -> Ranks:
    """Ranks from parts of which each holds an array of ranks for each query."""
    ranks = [rank for part in parts for rank in part]
    start = np.concatenate([[0], np.cumsum([len(rank) for rank in ranks], dtype=np.int64)]).astype(np.int64)
    return Ranks(start, np.concatenate([np.empty(0, np.int32), *ranks]).astype(np.int32))


def _ranks_of_block(start: int, block: np.ndarray, truth: Truth) -> list[np.ndarray]:
    """The ranks of the positives of each row of a block of similarities, ascending."""
    ranks = []
    for row, query in zip(block, range(start, start + len(block))):
        found = truth.positives(query)
        positives = np.sort(row[found])[::-1]
        row[found] = row[truth.ignored(query)] = -np.inf
        if len(positives) <= FEW_POSITIVES:
            before = np.array([np.count_nonzero(row >= positive) for positive in positives], np.int32)
        else:
            row.sort()
            before = len(row) - np.searchsorted(row, positives, side="left").astype(np.int32)
        ranks.append(before + np.arange(1, len(positives) + 1, dtype=np.int32))
    return ranks
