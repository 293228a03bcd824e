"""The ranks of the positives of every query in a gallery of many files: what each worker computes.

A block of queries needs, of the whole gallery,
1. its positives, whose similarities are the thresholds,
2. of each part, how many negatives are no less similar than each threshold, and the k nearest rows.
Counts of parts are added and nearest rows merged, so that the result is that of one gallery. Equal images
have equal similarities in whatever part they are, see `product`.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tfrank.common.ignore_labels import UNKNOWN
from tfrank.evaluation.nearest import top_k
from tfrank.evaluation.nearest.exhaustive import merge_neighbors
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.parallel import even, in_parallel, similarities
from tfrank.evaluation.retrieval_ranks import Ranks, counts_no_less, ranks_behind, ranks_of_queries
from tfrank.scale.parts import Rows

# TensorFlow sums the products of up to so many dimensions in one order, whatever rows are multiplied beside.
MOST_DIM = 512
# The dimensions that are multiplied at a time if there are more.
SLICE = 256
# Queries whose thresholds are made at a time.
OF_CLASSES = 48
# Queries and gallery rows of a product: 16 MiB of similarities in float32.
QUERIES, COLUMNS = 1024, 4096


class Thresholds(NamedTuple):
    """What a block of queries compares the gallery with.

    Attributes:
        start: `[queries + 1]` int64: query q has the values `value[start[q] : start[q + 1]]`.
        value: similarities of the positives of each query, ascending.
        own: `[queries]` int64, the query's own row among all of the gallery, or -1.
    """

    start: np.ndarray
    value: np.ndarray
    own: np.ndarray

    def of(self, query: int) -> np.ndarray:
        """The similarities of the positives of a query, ascending."""
        return self.value[self.start[query] : self.start[query + 1]]


class Counted(NamedTuple):
    """What a part of the gallery says of a block of queries.

    Attributes:
        no_less: of each threshold, the number of negatives that are no less similar.
        neighbors: the nearest rows, by their numbers among all of the gallery.
    """

    no_less: np.ndarray
    neighbors: Neighbors


def product(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """`[queries, gallery]` similarities; that of two rows has the same bits in every product with them."""
    number, queries = len(queries), even(queries)
    width = SLICE if queries.shape[1] > MOST_DIM else queries.shape[1]
    starts = range(0, queries.shape[1], width)
    parts = (similarities(queries[:, at : at + width], gallery[:, at : at + width]) for at in starts)
    return functools.reduce(np.add, parts)[:number]


def own_rows(queries: Rows, matches: Rows, *, leave_one_out: bool) -> np.ndarray:
    """`[queries]` the number of the query's own gallery row, or -1.

    In leave-one-out evaluation that is the number of the query, otherwise that of the match of the same id.
    """
    if leave_one_out:
        return queries.number
    if not len(matches.id):
        return np.full(len(queries.id), -1)
    order = np.argsort(matches.id, kind="stable")
    place = order[np.minimum(np.searchsorted(matches.id[order], queries.id), len(order) - 1)]
    return np.where(matches.id[place] == queries.id, matches.number[place], -1)


def thresholds_of(queries: Rows, matches: Rows, *, leave_one_out: bool) -> Thresholds:
    """The thresholds of a block of queries.

    Args:
        queries: the block.
        matches: all gallery rows of a class of the block or, unless `leave_one_out`, of an id of it.
        leave_one_out: whether the gallery consists of the queries.
    """
    own = own_rows(queries, matches, leave_one_out=leave_one_out)
    values: list = [np.empty(0, np.float32)] * len(own)
    by_class = np.argsort(queries.label, kind="stable")
    for start in range(0, len(own), OF_CLASSES):
        block = by_class[start : start + OF_CLASSES]
        near = np.isin(matches.label, queries.label[block])
        label, number, rows = matches.label[near], matches.number[near], matches.embeddings[near]
        for query, row in zip(block, product(queries.embeddings[block], rows)):
            positive = (label == queries.label[query]) & (label != UNKNOWN) & (number != own[query])
            values[query] = np.sort(row[positive])
    start = np.cumsum([0, *map(len, values)])
    return Thresholds(start, np.concatenate(values), own)


def counted(queries: Rows, gallery: Rows, thresholds: Thresholds, k: int = 0) -> Counted:
    """What a part of the gallery says of a block of queries.

    Args:
        queries: the block.
        gallery: the part, whose numbers ascend one by one.
        thresholds: the thresholds of the block.
        k: number of nearest rows to find.
    """

    def count(start):
        block = slice(start, start + QUERIES)
        labels, own = queries.label[block], thresholds.own[block]
        of_block = [thresholds.of(query) for query in range(start, start + len(labels))]
        keys = np.full([len(labels), k], top_k.EMPTY)
        sums = [np.zeros(len(values), np.int64) for values in of_block]
        for first in range(0, len(gallery.number), COLUMNS):
            columns = slice(first, first + COLUMNS)
            similarity = product(queries.embeddings[block], gallery.embeddings[columns])
            is_own = gallery.number[columns] == own[:, None]
            if k:
                keys = top_k.merge_tile(keys, np.where(is_own, np.float32(-np.inf), similarity), first)
            # Queries without a label have no thresholds, so nothing is counted for them.
            of_class = gallery.label[columns] == labels[:, None]
            negatives = np.where(is_own | of_class, np.float32(-np.inf), similarity)
            for one, more in zip(sums, counts_no_less(negatives, of_block)):
                one += more
        return np.concatenate(sums), keys

    no_less, keys = zip(*in_parallel(count, range(0, len(queries.label), QUERIES)))
    rows, similarity = top_k.unpack(np.concatenate(keys))
    index = np.where(rows < 0, -1, rows + gallery.number[0])
    return Counted(np.concatenate(no_less), Neighbors(index, similarity))


def merged(parts: Iterable[Counted], k: int) -> Counted:
    """What several parts of the gallery say together."""
    no_less, neighbors = zip(*parts)
    nearest = merge_neighbors(neighbors, [0] * len(neighbors), k) if k else neighbors[0]
    return Counted(sum(no_less), nearest)


def ranks(thresholds: Thresholds, no_less: np.ndarray) -> Ranks:
    """The ranks of the positives of each query of a block among all of the gallery."""
    return ranks_of_queries(map(ranks_behind, np.split(no_less, thresholds.start[1:-1])))
