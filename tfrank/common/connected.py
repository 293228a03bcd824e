"""Rows that pairs connect, into groups."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def groups_of(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Returns the number of the group that each of `count` rows is in.

    Args:
        first, second: `[pairs]` integers, the rows that are connected.
        count: number of rows.

    >>> groups_of(np.array([0, 3]), np.array([2, 2]), 4).tolist()
    [0, 1, 0, 0]
    """
    graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(count, count))
    return connected_components(graph, directed=False)[1]


def members_of(group: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each group that has at least two, ascending.

    >>> [rows.tolist() for rows in members_of(np.array([0, 1, 0, 0]))]
    [[0, 2, 3]]
    """
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return [rows for rows in members if len(rows) > 1]
