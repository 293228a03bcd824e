"""The ranks of the positives of every query in a gallery of many files: what each worker computes.

A block of queries needs, of the whole gallery,
1. its positives, whose similarities are the thresholds,
2. of each part, how many rows are no less similar than each threshold, and the k nearest rows.
Counts of parts are added and nearest rows merged, so that the result is that of one gallery. All similarities
come from products of at least `LEAST_ROWS` rows a side, of which TensorFlow rounds each in the same way.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.parallel import in_parallel, similarities
from tfrank.evaluation.protocols import UNKNOWN
from tfrank.evaluation.retrieval_ranks import Ranks, concatenated, counts_no_less, ranks_of
from tfrank.evaluation.search import top_k
from tfrank.evaluation.search.exhaustive import merge_neighbors
from tfrank.evaluation.search.neighbors import Neighbors
from tfrank.scale.parts import Rows

# With fewer rows TensorFlow multiplies in another order, which rounds differently.
LEAST_ROWS = 64
# Queries and gallery rows of a product: 16 MiB of similarities in float32.
QUERIES, COLUMNS = 1024, 4096


class Thresholds(NamedTuple):
    """What a block of queries compares the gallery with.

    Attributes:
        start: `[queries + 1]` int64: query q has the values `value[start[q] : start[q + 1]]`.
        value: similarities of the positives of each query, ascending.
        own: `[queries]` int64, the query's own row among all of the gallery, or -1.
        own_similarity: `[queries]` float32, the similarity to that row; -inf without one.
    """

    start: np.ndarray
    value: np.ndarray
    own: np.ndarray
    own_similarity: np.ndarray

    def of(self, query: int) -> np.ndarray:
        """The similarities of the positives of a query, ascending."""
        return self.value[self.start[query] : self.start[query + 1]]


class Counted(NamedTuple):
    """What a part of the gallery says of a block of queries.

    Attributes:
        no_less: of each threshold, the number of gallery rows that are no less similar.
        neighbors: the nearest rows, by their numbers among all of the gallery.
    """

    no_less: np.ndarray
    neighbors: Neighbors


def product(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """`[queries, gallery]` similarities, each rounded as in a product of any other size."""
    padded = (np.pad(x, [[0, max(0, LEAST_ROWS - len(x))], [0, 0]]) for x in (queries, gallery))
    return similarities(*padded)[: len(queries), : len(gallery)]


def own_rows(queries: Rows, matches: Rows, *, leave_one_out: bool) -> np.ndarray:
    """`[queries]` the number of the query's own row among gallery rows that match the block, or -1.

    In leave-one-out evaluation that is the row of the same number, otherwise the row of the same id.
    """
    key, keys = (queries.number, matches.number) if leave_one_out else (queries.id, matches.id)
    if not len(keys):
        return np.full(len(key), -1)
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys[order], key), len(keys) - 1)]
    return np.where(keys[place] == key, matches.number[place], -1)


def thresholds_of(queries: Rows, matches: Rows, *, leave_one_out: bool) -> Thresholds:
    """The thresholds of a block of queries.

    Args:
        queries: the block.
        matches: all gallery rows of a class of the block or, unless `leave_one_out`, of an id of it.
        leave_one_out: whether the gallery consists of the queries.
    """
    own = own_rows(queries, matches, leave_one_out=leave_one_out)
    own_similarity = np.full(len(own), -np.inf, np.float32)
    values: list = [np.empty(0, np.float32)] * len(own)
    by_class = np.argsort(queries.label, kind="stable")
    for start in range(0, len(own), LEAST_ROWS):
        block = by_class[start : start + LEAST_ROWS]
        near = np.isin(matches.label, queries.label[block]) | np.isin(matches.number, own[block])
        label, number, rows = matches.label[near], matches.number[near], matches.embeddings[near]
        for query, row in zip(block, product(queries.embeddings[block], rows)):
            is_own = number == own[query]
            own_similarity[query] = row[is_own].max(initial=-np.inf)
            positive = (label == queries.label[query]) & (label != UNKNOWN) & ~is_own
            values[query] = np.sort(row[positive])
    start = np.cumsum([0, *map(len, values)])
    return Thresholds(start, np.concatenate(values), own, own_similarity)


def counted(queries: np.ndarray, gallery: Rows, thresholds: Thresholds, k: int = 0) -> Counted:
    """What a part of the gallery says of a block of queries.

    Args:
        queries: `[queries, dim]` the embeddings of the block.
        gallery: the part, whose numbers ascend one by one.
        thresholds: the thresholds of the block.
        k: number of nearest rows to find.
    """

    def count(start):
        block = range(start, min(start + QUERIES, len(queries)))
        of_block = [thresholds.of(query) for query in block]
        keys = np.full([len(block), k], top_k.EMPTY)
        sums = [np.zeros(len(values), np.int64) for values in of_block]
        for first in range(0, len(gallery.number), COLUMNS):
            columns = gallery.embeddings[first : first + COLUMNS]
            similarity = product(queries[block.start : block.stop], columns)
            for one, more in zip(sums, counts_no_less(similarity, of_block)):
                one += more
            if k:
                own = thresholds.own[block.start : block.stop] - gallery.number[0] - first
                keys = top_k.merge_tile(keys, _without_own(similarity, own), first)
        return np.concatenate(sums), keys

    no_less, keys = zip(*in_parallel(count, range(0, len(queries), QUERIES)))
    rows, similarity = top_k.unpack(np.concatenate(keys))
    index = np.where(rows < 0, -1, rows + gallery.number[0])
    return Counted(np.concatenate(no_less), Neighbors(index, similarity))


def _without_own(similarity, own):
    """The similarities with -inf for each query's own column, if it is one of them."""
    there = np.flatnonzero((own >= 0) & (own < similarity.shape[1]))
    if len(there):
        similarity = similarity.copy()
        similarity[there, own[there]] = -np.inf
    return similarity


def merged(parts: Iterable[Counted], k: int) -> Counted:
    """What several parts of the gallery say together."""
    no_less, neighbors = zip(*parts)
    nearest = merge_neighbors(neighbors, [0] * len(neighbors), k) if k else neighbors[0]
    return Counted(sum(no_less), nearest)


def ranks(thresholds: Thresholds, no_less: np.ndarray) -> Ranks:
    """The ranks of the positives of each query of a block among all of the gallery."""

    def of_query(query):
        own = thresholds.own_similarity[query : query + 1]
        counts = no_less[thresholds.start[query] : thresholds.start[query + 1]]
        return ranks_of(counts, thresholds.of(query), own)

    return concatenated([[of_query(query) for query in range(len(thresholds.own))]])
