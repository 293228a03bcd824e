"""A gallery in shards, searched one after another or on other machines, with the result of one gallery."""

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tfrank import checks
from tfrank.checks import InputError
from tfrank.evaluation.neighbors import Neighbors, exact


def merge_neighbors(parts: Sequence[Neighbors], first_rows: Sequence[int], k: int) -> Neighbors:
    """The k nearest of a whole gallery from the k nearest of each of its shards.

    Of equally similar rows, the one that comes first in the gallery stands first, so the result is that of
    `exact` on the whole gallery, in whatever order the shards come.

    Args:
        parts: for each shard the neighbours of the same queries, at least k of each query, or all.
        first_rows: for each shard the row of the whole gallery that its row 0 is.
        k: how many, at most what the parts have columns.

    Returns:
        `[queries, k]` rows of the whole gallery and similarities; -1 and -inf where there are fewer.

    >>> far = Neighbors(np.array([[1]]), np.array([[0.3]]))
    >>> near = Neighbors(np.array([[0]]), np.array([[0.9]]))
    >>> merge_neighbors([far, near], [0, 2], 2).index.tolist()
    [[2, 1]]
    """
    k = checks.integer("k", k, at_least=1)
    if not parts or len(parts) != len(first_rows):
        raise checks.invalid(
            "first_rows", f"one row for each of {len(parts)} parts, at least one", first_rows
        )
    if len({len(part.index) for part in parts}) > 1:
        raise checks.invalid("parts", "neighbours of the same queries", [len(part.index) for part in parts])
    index = np.concatenate(
        [np.where(part.index < 0, -1, part.index + first) for part, first in zip(parts, first_rows)], axis=1
    )
    similarity = np.concatenate([part.similarity for part in parts], axis=1)
    order = np.lexsort((index, -similarity), axis=1)[:, :k]
    return Neighbors(np.take_along_axis(index, order, axis=1), np.take_along_axis(similarity, order, axis=1))


def search_shards(
    queries: np.ndarray,
    shards: Iterable[np.ndarray | str | os.PathLike],
    k: int,
    self_index: np.ndarray | None = None,
    search: Callable[..., Neighbors] = exact,
) -> Neighbors:
    """The k nearest rows of a gallery in shards, of which one is held at a time.

    Args:
        queries: `[queries, dim]`, as for `exact`.
        shards: the pieces of the gallery in order: `[rows, dim]` arrays, or paths of .npy files, which are
            read as memory maps. One without a row is passed over.
        k: how many, at most all.
        self_index: `[queries]` the query's own row of the whole gallery, which is left out, or -1.
        search: what searches a shard, such as `exact` or `scann`.

    Raises:
        InputError: no row at all, or a shard that is no such file, or that `search` refuses.

    >>> search_shards(np.eye(2), [np.eye(2)[:1], np.eye(2)[1:]], 1).index.tolist()
    [[0], [1]]
    """
    own = np.full(len(queries), -1) if self_index is None else np.asarray(self_index)
    best, first = None, 0
    for shard in shards:
        rows = shard if isinstance(shard, np.ndarray) else _memory_map(shard)
        if not len(rows):
            continue
        here = np.where((own >= first) & (own < first + len(rows)), own - first, -1)
        part = search(queries, rows, k, here)
        found = merge_neighbors([part], [first], k)
        best = found if best is None else merge_neighbors([best, found], [0, 0], k)
        first += len(rows)
    if best is None:
        raise checks.invalid("shards", "at least one row", list(shards))
    return best


def _memory_map(path: str | os.PathLike) -> np.ndarray:
    """The array of a .npy file, of which nothing is read yet."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"Cannot read the shard {os.fspath(path)} as a .npy file ({error}).") from None
