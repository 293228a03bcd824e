"""Groups of images that are nearly the same."""

from collections.abc import Callable

import numpy as np

from tfrank.common.connected import groups_of, members_of
from tfrank.search.structure import Structure

# Queries searched at a time, and neighbours searched at first; more where all of them are similar enough.
BLOCK, NEIGHBORS = 512, 8
# Neighbours that are held at a time, and pairs.
MOST_FOUND, MOST_PAIRS = 2**21, 2**22


def groups(
    search: Structure,
    rows: np.ndarray,
    min_similarity: float,
    check: Callable[[], None] | None = None,
    *,
    cosines: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Returns the rows of each group of at least two, the largest group first.

    A group is connected by pairs of at least this similarity; its other pairs may be less similar.

    Args:
        search: finds the nearest of `rows`.
        rows: `[rows, dim]` of unit norm.
        min_similarity: least cosine of a pair.
        check: called before each search; ends the work by raising an exception.
        cosines: given rows `[queries, dim]` and the numbers of their neighbours `[queries, k]`, -1 for none,
            returns the similarities `[queries, k]`; None: those that are searched by.
    """
    pairs, count = [], 0
    for start in range(0, len(rows), BLOCK):
        for pair in _pairs(
            search, rows, np.arange(start, min(start + BLOCK, len(rows))), min_similarity, check, cosines
        ):
            pairs.append(pair)
            count += len(pair[0])
            if count > MOST_PAIRS:
                pairs = [_fewest(_group(pairs, len(rows)))]
                count = len(pairs[0][0])
    return sorted(members_of(_group(pairs, len(rows))), key=lambda one: (-len(one), one[0]))


def _group(pairs, rows):
    """Returns the number of the group that each row is in, by the pairs that connect them."""
    return groups_of(*(np.concatenate(ends) for ends in zip(*pairs)), rows)


def _fewest(group):
    """Returns pairs, at most one a row, that connect the same groups."""
    leader = np.unique(group, return_index=True)[1][group]
    others = np.flatnonzero(leader != np.arange(len(group)))
    return leader[others], others


def _pairs(search, rows, queries, min_similarity, check, cosines):
    """Yields the pairs of similar rows whose first row is a query."""
    k = NEIGHBORS
    while len(queries):
        more = []
        for some in np.split(queries, np.arange(0, len(queries), max(1, MOST_FOUND // k))[1:]):
            if check:
                check()
            found = search.search(rows[some], min(k, len(rows)))
            similarity = cosines(rows[some], found.index) if cosines else found.similarity
            similar = (found.index >= 0) & (similarity >= min_similarity)
            # Where all neighbours are similar, there may be more.
            unfinished = similar.all(axis=1) & (found.index.shape[1] < len(rows))
            done = similar & ~unfinished[:, None]
            yield np.repeat(some, done.sum(axis=1)), found.index[done]
            more.append(some[unfinished])
        queries, k = np.concatenate(more), 4 * k
