"""Nearest neighbours, exact or by ScaNN, behind one signature."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfrank import checks
from tfrank.checks import InputError
from tfrank.evaluation import top_k
from tfrank.evaluation.parallel import Gallery, cores, gpu, in_parallel
from tfrank.evaluation.scann_probe import scann_problem

# Similarities that a thread holds at a time: 8 MiB in float32, which stay in the cache.
BLOCK_SIMILARITIES = 2**21
# Gallery rows that a block of queries is multiplied with at a time.
TILE_ROWS = 2**13
# Values of the gallery that are read at a time from a memory map: 256 MiB in float32.
SLAB_VALUES = 2**26
# Similarities that a GPU holds at a time, for each of two threads: 256 MiB in float32.
GPU_SIMILARITIES = 2**26
# By how much two float32 products of the same unit vectors may differ, summed in another order.
ROUNDING = 1e-6


class Neighbors(NamedTuple):
    """The nearest gallery rows of each query, nearest first.

    Attributes:
        index: `[queries, k]` int64 gallery rows; -1 where there are fewer than k. Where k is more than the
            gallery has rows, there is one column a row.
        similarity: `[queries, k]` float32 cosine; -inf where there are fewer than k.
    """

    index: np.ndarray
    similarity: np.ndarray


def exact(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None = None
) -> Neighbors:
    """The k nearest rows of the gallery by exhaustive search, on the first GPU or else on all cores.

    Of equally similar rows, the one that comes first in the gallery stands first. Memory holds the result
    and a bounded piece of queries and gallery, so both may be memory maps larger than memory.

    Args:
        queries: `[queries, dim]` of unit norm, of any real type; products are in float32.
        gallery: `[gallery, dim]` likewise. A row of zeros has similarity 0 to everything.
        k: how many, at most all.
        self_index: `[queries]` the query's own gallery row, which is left out, or -1. None: all -1.

    Raises:
        InputError: no row, rows of another dim or not finite, k below 1.

    >>> exact(np.eye(3), np.eye(3)[[0, 1, 1]], 2, self_index=np.array([0, -1, -1])).index.tolist()
    [[1, 2], [1, 2], [0, 1]]
    """
    k, queries, gallery, own = checked(queries, gallery, k, self_index)
    if len(gallery) > top_k.MOST_ROWS:
        raise InputError(f"A gallery has at most {top_k.MOST_ROWS:,} rows; search_shards takes any number.")
    keys = np.full([len(queries), k], top_k.EMPTY)
    slab = max(1, SLAB_VALUES // gallery.shape[1])
    for first_row in range(0, len(gallery), slab):
        rows = float32_rows("gallery", gallery, first_row, first_row + slab)
        _search_slab(keys, queries, rows, first_row, own)
    return Neighbors(*top_k.unpack(keys))


def _search_slab(
    keys: np.ndarray, queries: np.ndarray, rows: np.ndarray, first_row: int, own: np.ndarray
) -> None:
    """Merges the nearest of the gallery's rows from `first_row` on into the keys of all queries."""
    # A GPU takes the slab as a whole; two threads keep it busy.
    tile = len(rows) if gpu() else max(TILE_ROWS, 4 * keys.shape[1])
    room, workers = (GPU_SIMILARITIES, 2) if gpu() else (BLOCK_SIMILARITIES, None)
    size = min(max(1, room // tile), -(-len(queries) // (workers or cores())))
    tiles = [(first_row + start, rows[start : start + tile]) for start in range(0, len(rows), tile)]
    tiles = [(start, Gallery(part)) for start, part in tiles]
    merge = _merge_on_gpu if gpu() else _merge_tile

    def search_block(start):
        block = slice(start, start + size)
        part, found = float32_rows("queries", queries, start, start + size), keys[block]
        for first, gallery in tiles:
            found = merge(found, part, gallery, first, _own_places(own[block], first, len(gallery)))
        keys[block] = found

    for _ in in_parallel(search_block, range(0, len(queries), size), workers=workers):
        pass


def _merge_tile(keys, queries, gallery, first_row, own):
    """The keys of a block of queries, once these rows of the gallery are among them."""
    block = gallery.similarities(queries)
    if len(own[0]):
        block = block.copy()
        block[own] = -np.inf
    return top_k.merge_tile(keys, block, first_row)


def _merge_on_gpu(keys, queries, gallery, first_row, own):
    """As `_merge_tile`, and only the nearest come back from the GPU."""
    similarity, row = gallery.largest(queries, min(keys.shape[1], len(gallery)), *own)
    return top_k.merge(keys, top_k.pack(similarity, first_row + row.astype(np.int64)))


def _own_places(own, first_row, rows):
    """The queries of a block that stand among these rows of the gallery, and where."""
    query = np.flatnonzero((own >= first_row) & (own < first_row + rows))
    return query, own[query] - first_row


def scann(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    self_index: np.ndarray | None = None,
    *,
    target_recall: float = 0.99,
) -> Neighbors:
    """As `exact`, by a `ScannIndex` that is configured by the gallery's size and built to this recall."""
    # Here, since an index searches exactly too.
    from tfrank.evaluation.scann_index import ScannIndex

    return ScannIndex.build(gallery, k=k, target_recall=target_recall).search(queries, k, self_index)


SEARCHES: dict[str, Callable[..., Neighbors]] = {"exact": exact, "scann": scann}


def search(name: str, *, target_recall: float = 0.99) -> Callable[..., Neighbors]:
    """The search of that name: "exact", or "scann" to a recall; exact, and a line that says so, where ScaNN
    cannot run.
    """
    name, why = usable(name)
    if why:
        _say_once(why)
    chosen = SEARCHES[name]
    return functools.partial(scann, target_recall=target_recall) if chosen is scann else chosen


def usable(name: str) -> tuple[str, str]:
    """The search that can be done here, and why where that is not the one asked for, or "".

    Args:
        name: a name of `SEARCHES`.

    Raises:
        InputError: it is none.

    >>> usable("exact")
    ('exact', '')
    """
    if SEARCHES[checks.one_of("neighbors", name, SEARCHES)] is not scann or not (problem := scann_problem()):
        return name, ""
    return "exact", f"Searched exactly, not by ScaNN. {problem}"


@functools.cache
def _say_once(line: str) -> None:
    """Prints a line, the first time."""
    print(line, flush=True)


def recall_against_exact(
    found: Neighbors,
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    self_index: np.ndarray | None = None,
    *,
    sample: int = 1000,
    seed: int = 0,
) -> float:
    """The share of the exact k nearest that a search found, for a sample of the queries.

    Ties count: a found row as similar as the k-th nearest, but for rounding, is as right as that one. This
    is no Recall@K: labels play no part.

    Args:
        found: what an approximate search gave for all queries, at least k of each.
        queries: `[queries, dim]`, as for `exact`.
        gallery: `[gallery, dim]`, as for `exact`.
        k: how many neighbours.
        self_index: `[queries]`, as for `exact`.
        sample: of how many queries.
        seed: which ones.

    Returns:
        0 to 1; 1 where there is nothing to find.

    >>> rows = np.eye(4)
    >>> recall_against_exact(Neighbors(np.array([[0, 3]]), np.array([[1.0, 0.0]])), rows[:1], rows, 2)
    1.0
    """
    k, queries, gallery, own = checked(queries, gallery, k, self_index)
    if found.index.shape[0] != len(queries) or found.index.shape[1] < k:
        raise checks.invalid("found", f"the {k} nearest of {len(queries)} queries", found.index.shape)
    count = min(checks.integer("sample", sample, at_least=1), len(queries))
    chosen = np.sort(np.random.default_rng(seed).choice(len(queries), count, replace=False))
    truth = exact(queries[chosen], gallery, k, own[chosen])
    return share_found(
        found._replace(index=found.index[chosen]), truth, queries[chosen], gallery, own[chosen]
    )


def share_found(
    found: Neighbors, truth: Neighbors, queries: np.ndarray, gallery: np.ndarray, own: np.ndarray
) -> float:
    """As `recall_against_exact`, where the exact neighbours of each query are known.

    Args:
        found: what an approximate search gave, as many of each query as `truth` has or more.
        truth: `[queries, k]` what `exact` gave.
        queries: `[queries, dim]`.
        gallery: `[gallery, dim]`.
        own: `[queries]` the query's own gallery row, or -1.
    """
    right = 0
    for query, some, nearest, similarity, self_row in zip(queries, found.index, *truth, own):
        rows = np.setdiff1d(some[: len(nearest)], [-1, self_row])
        least = similarity[nearest >= 0].min(initial=np.inf)
        product = gallery[rows].astype(np.float32) @ query.astype(np.float32)
        right += np.count_nonzero(np.isin(rows, nearest) | (product >= least - ROUNDING))
    wanted = np.count_nonzero(truth.index >= 0)
    return float(right / wanted) if wanted else 1.0


def checked(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """k, queries, gallery and the queries' own rows, -1 for none, if they fit together; else InputError.

    k is at most the gallery's size: what is searched never takes the memory of a larger one.
    """
    k = checks.integer("k", k, at_least=1)
    queries, gallery = matrix("queries", queries), matrix("gallery", gallery)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"Queries have {queries.shape[1]} dimensions and the gallery has {gallery.shape[1]}. Embed both"
            " with the same model."
        )
    k = min(k, len(gallery))
    if self_index is None:
        return k, queries, gallery, np.full(len(queries), -1)
    own = np.asarray(self_index)
    if own.shape != (len(queries),) or own.dtype.kind not in "iu":
        raise checks.invalid(
            "self_index", f"a gallery row, or -1, of each of {len(queries)} queries", self_index
        )
    if own.max() >= len(gallery):
        raise checks.invalid("self_index", f"rows below {len(gallery)}, the gallery's size", own.max())
    return k, queries, gallery, own


def matrix(name: str, rows: np.ndarray) -> np.ndarray:
    """`rows` as an array, of which nothing is read, if it is `[rows, dim]` numbers; InputError otherwise."""
    array = np.asarray(rows)
    if array.ndim != 2 or 0 in array.shape or not (array.dtype.kind in "fiu" or array.dtype == "bfloat16"):
        raise InputError(
            f"Invalid value for argument `{name}`. Expected `[rows, dim]` real numbers, at least one row."
            f" Received: {array.dtype} of shape {array.shape}."
        )
    return array


def float32_rows(
    name: str, array: np.ndarray, start: int, stop: int, ids: np.ndarray | None = None
) -> np.ndarray:
    """Some rows of a matrix in float32 and C order; InputError that names the first one not finite."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array[start:stop], np.float32)
    # The sum of all, which is quick, is finite only if each is.
    if not np.isfinite(rows.sum()) and not (finite := np.isfinite(rows).all(axis=1)).all():
        bad = start + int(np.argmin(finite))
        place = f"Row {bad}" if ids is None else f"The row of id {ids[bad].item()!r}"
        raise InputError(f"{place} of `{name}` is not finite in float32. Leave it out, or embed it again.")
    return rows
