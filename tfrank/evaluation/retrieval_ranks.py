"""The ranks of each query's positives. Retrieval metrics at any K need only these, no neighbour lists.

Ties are ranked pessimistically: a negative as similar as a positive is ranked before it. All similarities of
a query come from one product, because two products may round the same pair differently. On many processors
even one product rounds equal rows differently at different positions, so equal gallery rows share the
similarity of the first of them.

Neither all similarities nor all ranks are held at a time: products are computed in blocks of queries, and a
block is ranked and measured in slices, whose ranks are then forgotten.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from tfrank.evaluation.parallel import Gallery, in_parallel
from tfrank.evaluation.relevance import Relevance
from tfrank.evaluation.threshold_counts import count_at_least

# Similarities of a product: 128 MiB in float32. Few queries at a time would make the product slower.
BLOCK_SIMILARITIES = 2**25
# The same if each block reads the whole gallery again: 1 GiB.
STREAMED_SIMILARITIES = 2**28
# Similarities that a thread ranks at a time.
SLICE_SIMILARITIES = 2**22
# Rows compared with one another at a time.
CHECKED = 2**12
# With at most this many positives a query's row is compared with each of them; with more, it is sorted.
FEW_POSITIVES = 20

Name, Result = TypeVar("Name", bound=Hashable), TypeVar("Result")
# (first query, `[block, gallery]` similarities), in the order of the queries.
Blocks = Iterable[tuple[int, np.ndarray]]


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


def similarity_blocks(queries: np.ndarray, gallery: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """All similarities, in blocks of queries: yields (first query, `[block, gallery]` float32).

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
    """
    rows, (copies, firsts) = Gallery(gallery), repeated_rows(gallery)
    size = max(1, (BLOCK_SIMILARITIES if rows.held else STREAMED_SIMILARITIES) // max(len(gallery), 1))
    for start in range(0, len(queries), size):
        block = rows.similarities(queries[start : start + size])
        if len(copies):
            block = np.array(block)
            block[:, copies] = block[:, firsts]
        yield start, block


def repeated_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows that equal an earlier row, and for each the number of the first such row.

    Args:
        rows: `[rows, dim]` float32, an array or a memory map, which is read in blocks.

    >>> repeated_rows(np.float32([[0, 1], [1, 0], [0, 1]]))
    (array([2]), array([0]))
    """
    weights = np.random.default_rng(0).integers(2**64, size=rows.shape[1], dtype=np.uint64)
    # Adding 0 makes -0 the 0 that it equals.
    blocks = (rows[start : start + CHECKED] + np.float32(0) for start in range(0, len(rows), CHECKED))
    sums = np.concatenate([block.view(np.uint32).astype(np.uint64) @ weights for block in blocks])
    _, first, place = np.unique(sums, return_index=True, return_inverse=True)
    copies = np.flatnonzero(first[place] != np.arange(len(rows)))
    firsts = first[place[copies]]
    parts = (slice(start, start + CHECKED) for start in range(0, len(copies), CHECKED))
    equal = [np.all(rows[copies[part]] == rows[firsts[part]], axis=1) for part in parts]
    there = np.concatenate([np.empty(0, bool), *equal])
    return copies[there], firsts[there]


def measured(
    blocks: Blocks, relevance: Mapping[Name, Relevance], measure: Callable[[dict[Name, Ranks]], Result]
) -> Iterator[Result]:
    """Yields what `measure` makes of the ranks of each slice of the queries, in order, by several threads.

    Memory holds two blocks of similarities and the ranks of a few slices, however many positives there are.

    Args:
        blocks: the similarities.
        relevance: what each query should find; several by name are ranked by the same similarities.
        measure: maps the ranks of a slice of the queries, by the same names, to a result.
    """

    def of_slice(part):
        return measure({name: _ranks_of_rows(*part, one) for name, one in relevance.items()})

    return in_parallel(of_slice, _slices(blocks))


def positive_ranks(queries: np.ndarray, gallery: np.ndarray, relevance: Relevance) -> Ranks:
    """The ranks of the positives of each query among all gallery rows that are not ignored for it.

    Takes 8 bytes a positive of a query, unlike `measured`.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        relevance: what each query should find.
    """
    return ranks_of_blocks(similarity_blocks(queries, gallery), relevance)


def ranks_of_blocks(blocks: Blocks, relevance: Relevance) -> Ranks:
    """The ranks of the positives, as in `positive_ranks`, from similarities computed elsewhere."""
    return joined(measured(blocks, {"": relevance}, lambda ranks: ranks[""]))


def joined(parts: Iterable[Ranks]) -> Ranks:
    """The ranks of all queries, given those of consecutive parts of the queries."""
    parts = list(parts)
    positives = [0, *(count for part in parts for count in part.positives.tolist())]
    ranks = [part.rank for part in parts]
    return Ranks(np.cumsum(positives, dtype=np.int64), np.concatenate([np.empty(0, np.int32), *ranks]))


def ranks_of_queries(ranks: Iterable[np.ndarray]) -> Ranks:
    """The ranks of several queries, given those of each.

    >>> ranks_of_queries([np.array([1, 4]), np.array([], int)])
    Ranks(start=array([0, 2, 2]), rank=array([1, 4], dtype=int32))
    """
    ranks = [rank.astype(np.int32) for rank in ranks]
    start = np.cumsum([0, *map(len, ranks)], dtype=np.int64)
    return Ranks(start, np.concatenate([np.empty(0, np.int32), *ranks]))


def _slices(blocks: Blocks) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks, cut into slices that a thread ranks at a time."""
    for start, block in blocks:
        size = max(1, SLICE_SIMILARITIES // max(block.shape[1], 1))
        for first in range(0, len(block), size):
            yield start + first, block[first : first + size]


def _ranks_of_rows(start: int, rows: np.ndarray, relevance: Relevance) -> Ranks:
    """The ranks of the positives of each row of similarities, of the queries from number `start` on."""
    queries = range(start, start + len(rows))
    positives = [np.sort(row[relevance.positives(query)]) for row, query in zip(rows, queries)]
    ranks = []
    for row, query, positive, count in zip(rows, queries, positives, counts_no_less(rows, positives)):
        others, ignored = _no_less(positive, positive), relevance.ignored(query)
        if len(ignored):
            others += _no_less(np.sort(row[ignored]), positive)
        ranks.append(ranks_behind(count - others))
    return ranks_of_queries(ranks)


def counts_no_less(rows: np.ndarray, thresholds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The number of values of each row that are no less than each threshold of that row.

    Args:
        rows: `[rows, columns]` similarities, of any float type.
        thresholds: for each row, its thresholds, ascending.

    >>> counts_no_less(np.float32([[3, 1, 2]]), [np.float32([2, 3])])
    [array([2, 1])]
    """
    sizes = np.array([*map(len, thresholds)])
    few = np.flatnonzero(sizes <= FEW_POSITIVES)
    padded = np.full([len(few), sizes[few].max(initial=0)], np.inf, rows.dtype)
    for row, number in zip(padded, few):
        row[: sizes[number]] = thresholds[number]
    compared = count_at_least(rows if len(few) == len(rows) else rows[few], padded)
    counts: list = [None] * len(rows)
    for number, count in zip(few, compared):
        counts[number] = count[: sizes[number]]
    for number in np.flatnonzero(sizes > FEW_POSITIVES):
        counts[number] = _no_less(np.sort(rows[number]), thresholds[number])
    return counts


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
    return len(row) - row.searchsorted(thresholds)
