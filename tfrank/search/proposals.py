"""Groups of photos that likely show the same, to be confirmed: photos that are nearest to each other."""

import collections
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.search.structure import Structure

# Neighbours among which two photos have to find each other.
NEIGHBORS = 10
# Queries searched at a time.
BLOCK = 512
# Neighbours whose label is likely, those of whom one has to have it; photos of the smallest new group, and of
# the largest proposal.
VOTES, NEAREST, FEWEST, MOST = 3, 3, 3, 24


class Proposal(NamedTuple):
    """Photos that likely show the same.

    Attributes:
        rows: numbers of the photos, those first that are most like the others.
        label: the label of those that they resemble; "" if they have none yet.
    """

    rows: list[int]
    label: str


def nearest(
    search: Structure, rows: np.ndarray, check: Callable[[], None] = lambda: None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the nearest of each row, itself left out, and their cosines.

    Args:
        search: finds the nearest of `rows`.
        rows: `[rows, dim]` of unit norm.
        check: called before each search; ends the work by raising an exception.

    Returns:
        `[rows, k]` integers, -1 for none, and `[rows, k]` float32.
    """
    found = []
    for start in range(0, len(rows), BLOCK):
        check()
        some = search.search(rows[start : start + BLOCK], min(NEIGHBORS + 1, len(rows)))
        own = np.arange(start, start + len(some.index))[:, None]
        # The row itself goes, or the last one where it is not among them.
        others = np.argsort(some.index == own, axis=1, kind="stable")[:, :-1]
        found.append([np.take_along_axis(part, others, 1) for part in some])
    index, similarity = (np.concatenate(parts) for parts in zip(*found))
    return index, similarity


def proposals(
    neighbors: np.ndarray, similarities: np.ndarray, labels: Sequence[str], left_out: Collection[int] = ()
) -> list[Proposal]:
    """Returns groups of photos without a label, the largest first; no photo is in two.

    A label is likely for a photo if at least `VOTES` of its nearest have it, and most of those that have one.
    It is proposed if one of the `NEAREST` has it, and most of the nearest have it or likely have it. Of the
    other photos, two are friends if each is among the nearest of the other. The one whose friends are
    most similar takes those of them that are friends of at least half of one another, and so on.

    Args:
        neighbors: `[photos, k]` numbers of the nearest of each photo, itself left out; -1 for none.
        similarities: `[photos, k]` their cosines.
        labels: `[photos]` words; "" for none.
        left_out: numbers of photos that belong to no group.

    >>> neighbors = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [4, 0, 1], [3, 0, 1]])
    >>> proposals(neighbors, np.full([5, 3], 0.9), [""] * 5)
    [Proposal(rows=[0, 1, 2, 3], label='')]
    >>> proposals(neighbors, np.full([5, 3], 0.9), ["", "a", "a", "a", ""])
    [Proposal(rows=[0], label='a')]
    """
    near = [{one: like for one, like in zip(*row) if one >= 0} for row in _lists(neighbors, similarities)]
    free = {row for row, label in enumerate(labels) if not label} - set(left_out)
    found = _joining(near, labels, free)
    free -= {row for one in found for row in one.rows}
    friends = {row: {one for one in near[row] if one in free and row in near[one]} for row in free}
    warmth = {row: sum(near[row][one] for one in friends[row]) for row in free}
    for seed in sorted(free, key=lambda row: (-warmth[row], row)):
        group = {seed, *friends[seed]} & free
        close = [row for row in group if 2 * len(friends[row] & group) >= len(group) - 1]
        if seed in close and len(close) >= FEWEST:
            close.sort(key=lambda row: (row != seed, -near[seed].get(row, 0), row))
            found.append(Proposal(close, ""))
            free -= set(close)
    return sorted(found, key=lambda one: (-len(one.rows), one.rows[0]))


def _lists(neighbors, similarities):
    return zip(neighbors.tolist(), similarities.tolist())


def _joining(near, labels, free):
    """Returns for each label the photos without one that resemble it, those first that do most."""
    likely, joining = {}, collections.defaultdict(list)
    for row in free:
        votes = collections.Counter(labels[one] for one in near[row] if labels[one])
        label, count = max(votes.items(), key=lambda vote: (vote[1], vote[0]), default=("", 0))
        if count >= VOTES and 2 * count > votes.total():
            likely[row] = label
    for row, label in likely.items():
        agree = [label in (labels[one], likely.get(one)) for one in near[row]]
        if any(labels[one] == label for one in list(near[row])[:NEAREST]) and 2 * sum(agree) > len(agree):
            joining[label].append((-sum(agree), row))
    return [Proposal([row for _, row in sorted(some)[:MOST]], label) for label, some in joining.items()]
