"""Relevance: which gallery rows each query should find, and which it ignores."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.categories import levels_of


class Relevance(NamedTuple):
    """The gallery rows that each query should find, and those that do not count for it.

    Attributes:
        positives: maps a query's number to the gallery rows that it should find.
        ignored: maps a query's number to the gallery rows left out of its ranking, such as the query itself.
    """

    positives: Callable[[int], np.ndarray]
    ignored: Callable[[int], np.ndarray]


def relevance_by_label(
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
    self_index: np.ndarray | None = None,
    junk: np.ndarray | None = None,
) -> Relevance:
    """A query should find the gallery rows with its label, except itself.

    Args:
        query_labels: `[queries]` integers.
        gallery_labels: `[gallery]` integers.
        self_index: `[queries]` the query's own gallery row, or -1. None: all -1.
        junk: `[queries, gallery]` bool, rows that are neither positives nor negatives of a query.

    >>> relevance_by_label(np.array([7, 8]), np.array([7, 8, 7]), np.array([0, 1])).positives(0)
    array([2])
    """
    order = np.argsort(gallery_labels, kind="stable")
    ordered = gallery_labels[order]
    first = np.searchsorted(ordered, query_labels, side="left")
    last = np.searchsorted(ordered, query_labels, side="right")

    def ignored(query):
        own = [] if self_index is None or self_index[query] < 0 else [self_index[query]]
        if junk is None:
            return np.array(own, np.int64)
        return np.union1d(np.flatnonzero(junk[query]), own).astype(np.int64)

    def positives(query):
        rows = order[first[query] : last[query]]
        if self_index is not None:
            rows = rows[rows != self_index[query]]
        return rows if junk is None else rows[~junk[query, rows]]

    return Relevance(positives, ignored)


def relevance_of_categories(
    query_categories: np.ndarray,
    gallery_categories: np.ndarray,
    self_index: np.ndarray,
    junk: np.ndarray | None = None,
) -> tuple[Relevance, ...]:
    """What a query should find at each level of its categories, the coarsest first.

    Two images share a level if they have the same category there and at all coarser levels.

    Args:
        query_categories: `[queries, levels]` integers, from finer to coarser categories.
        gallery_categories: `[gallery, levels]`.
        self_index, junk: see `relevance_by_label`.

    >>> both = np.array([[1, 8], [2, 8], [1, 9]])
    >>> coarse, fine = relevance_of_categories(both, both, np.arange(3))
    >>> coarse.positives(0), fine.positives(0)
    (array([1]), array([], dtype=int64))
    """
    levels, queries = levels_of(np.concatenate([query_categories, gallery_categories])), len(query_categories)
    return tuple(relevance_by_label(level[:queries], level[queries:], self_index, junk) for level in levels)


def relevance_by_list(positives: Sequence[np.ndarray], ignored: Sequence[np.ndarray]) -> Relevance:
    """Relevance from lists: for each query, the gallery rows to find and the gallery rows to ignore.

    The two lists of a query have no repeated row and no common row.
    """
    return Relevance(lambda query: positives[query], lambda query: ignored[query])
