"""Search in a gallery of shards, one after another or on several machines, with the result of one gallery."""

import os
from collections.abc import Callable, Iterable

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.search.exhaustive import exact, merge_neighbors
from tfrank.evaluation.search.neighbors import Neighbors


def search_shards(
    queries: np.ndarray,
    shards: Iterable[np.ndarray | str | os.PathLike],
    k: int,
    self_index: np.ndarray | None = None,
    search: Callable[..., Neighbors] = exact,
) -> Neighbors:
    """The k nearest rows of a gallery in shards. Only one shard is held at a time.

    Args:
        queries: `[queries, dim]`, as for `exact`.
        shards: the pieces of the gallery in order: `[rows, dim]` arrays, or paths of .npy files, which are
            read as memory maps. Empty shards are skipped.
        k: number of neighbours; more than the gallery has means all.
        self_index: `[queries]` the query's own row in the whole gallery, which is left out, or -1.
        search: the search for each shard, such as `exact` or `scann`.

    Raises:
        InputError: there is no row at all, a file cannot be read, or `search` rejects a shard.

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
        raise checks.invalid("shards", "at least one row", "none")
    return best


def _memory_map(path: str | os.PathLike) -> np.ndarray:
    """The array of a .npy file as a memory map."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"Cannot read the shard {os.fspath(path)} as a .npy file ({error}).") from None
