"""Groups of images that are nearly the same."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tfrank.search.structure import Structure

# Queries searched at a time, and neighbours searched at first; more where all of them are similar enough.
BLOCK, NEIGHBORS = 4096, 8


def groups(search: Structure, rows: np.ndarray, min_similarity: float) -> list[np.ndarray]:
    """Returns the rows of each group of at least two, the largest group first.

    A group is connected by pairs of at least this similarity; its other pairs may be less similar.

    Args:
        search: finds the nearest of `rows`.
        rows: `[rows, dim]` of unit norm.
        min_similarity: least cosine of a pair.
    """
    pairs = [
        pair
        for start in range(0, len(rows), BLOCK)
        for pair in _pairs(search, rows, np.arange(start, min(start + BLOCK, len(rows))), min_similarity)
    ]
    first, second = (np.concatenate(ends) for ends in zip(*pairs))
    graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(len(rows), len(rows)))
    _, group = connected_components(graph, directed=False)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return sorted((one for one in members if len(one) > 1), key=lambda one: (-len(one), one[0]))


def _pairs(search, rows, queries, min_similarity):
    """Yields the pairs of similar rows of which the first is a query."""
    k = NEIGHBORS
    while len(queries):
        found = search.search(rows[queries], min(k, len(rows)))
        similar = (found.index >= 0) & (found.similarity >= min_similarity)
        # Where all neighbours are similar, there may be more.
        more = similar.all(axis=1) & (found.index.shape[1] < len(rows))
        done = similar & ~more[:, None]
        yield np.repeat(queries, done.sum(axis=1)), found.index[done]
        queries, k = queries[more], 4 * k
