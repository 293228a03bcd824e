"""The ranks of each query's positives. Retrieval metrics at any K need only these, no neighbour lists.

Ties are ranked pessimistically: a negative as similar as a positive is ranked before it. All similarities of
a query come from one product, because two products may round the same pair differently.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.parallel import Gallery, in_parallel
from tfrank.evaluation.relevance import Relevance
from tfrank.evaluation.threshold_counts import count_at_least

# Similarities that a thread holds at a time: 64 MiB in float32.
BLOCK_SIMILARITIES = 2**24
# The same if each block reads the whole gallery again, by two threads: 1 GiB each.
STREAMED_SIMILARITIES = 2**28
# With at most this many positives a query's row is compared with each of them; with more, it is sorted.
FEW_POSITIVES = 8


class Ranks(NamedTuple):
    """The ranks of the positives of every query, from 1, ascending for each query.

    Attributes:
        start: `[queries + 1]` int64: the ranks of query q are `rank[start[q] : start[q + 1]]`.
        rank: `[positives of all queries]` int32.
    """

    start: np.ndarray
    rank: np.ndarray

    @property
    def positives(self) -> np.ndarray:
        """`[queries]` int64, the number of positives of each query."""
        return np.diff(self.start)


def positive_ranks(queries: np.ndarray, gallery: np.ndarray, relevance: Relevance) -> Ranks:
    """The ranks of the positives of each query among all gallery rows that are not ignored for it.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        relevance: what each query should find.
    """
    rows = Gallery(gallery)
    size = max(1, (BLOCK_SIMILARITIES if rows.held else STREAMED_SIMILARITIES) // max(len(gallery), 1))

    def ranks_of(start):
        return _ranks_of_block(start, rows.similarities(queries[start : start + size]), relevance)

    starts = range(0, len(queries), size)
    return concatenated(in_parallel(ranks_of, starts, workers=None if rows.held else 2))


def ranks_of_blocks(blocks: Iterable[tuple[int, np.ndarray]], relevance: Relevance) -> Ranks:
    """The ranks of the positives, as in `positive_ranks`, from similarities computed elsewhere.

    Args:
        blocks: (first query, `[block, gallery]` similarities), in the order of the queries.
        relevance: what each query should find.
    """
    return concatenated(in_parallel(lambda block: _ranks_of_block(*block, relevance), blocks))


def concatenated(parts: Iterable[Sequence[np.ndarray]]) -> Ranks:
    """The ranks of all parts. Each part has one array of ranks for each of its queries."""
    ranks = [rank for part in parts for rank in part]
    start = np.concatenate([[0], np.cumsum([len(rank) for rank in ranks], dtype=np.int64)]).astype(np.int64)
    return Ranks(start, np.concatenate([np.empty(0, np.int32), *ranks]).astype(np.int32))


def _ranks_of_block(start: int, block: np.ndarray, relevance: Relevance) -> list[np.ndarray]:
    """The ranks of the positives of each row of a block of similarities, ascending."""
    queries = range(start, start + len(block))
    positives = [np.sort(row[relevance.positives(query)]) for row, query in zip(block, queries)]
    ranks = []
    for row, query, positive, count in zip(block, queries, positives, counts_no_less(block, positives)):
        ignored = np.sort(row[relevance.ignored(query)])
        ranks.append(ranks_behind(count - _no_less(positive, positive) - _no_less(ignored, positive)))
    return ranks


def counts_no_less(block: np.ndarray, thresholds: Sequence[np.ndarray]) -> Iterable[np.ndarray]:
    """The number of values of each row of a block that are no less than each threshold of that row.

    Args:
        block: `[rows, columns]` float32 similarities.
        thresholds: for each row, its thresholds, ascending.
    """
    most = max(map(len, thresholds))
    if most > FEW_POSITIVES:
        return (_no_less(np.sort(row), threshold) for row, threshold in zip(block, thresholds))
    padded = np.full([len(block), most], np.inf, block.dtype)
    for row, threshold in zip(padded, thresholds):
        row[: len(threshold)] = threshold
    return (row[: len(of_row)] for row, of_row in zip(count_at_least(block, padded), thresholds))


def ranks_behind(negatives: np.ndarray) -> np.ndarray:
    """The ranks of a query's positives, ascending, behind the negatives and each other.

    Args:
        negatives: `[positives]` the number of negatives no less similar than each positive, from the least
            similar positive to the most similar.

    >>> ranks_behind(np.array([1, 0]))
    array([1, 3])
    """
    return (negatives + np.arange(len(negatives), 0, -1))[::-1]


def _no_less(row: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The number of values of an ascending row that are no less than each threshold."""
    return len(row) - np.searchsorted(row, thresholds, side="left")
