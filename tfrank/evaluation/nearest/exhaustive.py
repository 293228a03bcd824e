"""Exhaustive search, and the recall of approximate searches against it."""

from collections.abc import Sequence

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.devices import gpu
from tfrank.evaluation.nearest import top_k
from tfrank.evaluation.nearest.neighbors import Neighbors, checked, float32_rows
from tfrank.evaluation.parallel import Gallery, cores, in_parallel

# Similarities that a thread holds at a time: 8 MiB in float32, so that they stay in the cache.
BLOCK_SIMILARITIES = 2**21
# Gallery rows multiplied with a block of queries at a time.
TILE_ROWS = 2**13
# Gallery values read from a memory map at a time: 256 MiB in float32.
SLAB_VALUES = 2**26
# Similarities that a GPU holds at a time, for each of two threads: 256 MiB in float32.
GPU_SIMILARITIES = 2**26
# Largest difference between float32 products of the same unit vectors that are summed in another order.
ROUNDING = 1e-6


def exact(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None = None
) -> Neighbors:
    """The k nearest gallery rows of each query by exhaustive search, on the first GPU or else on all cores.

    Equally similar rows keep the order of the gallery. Memory holds the result and a bounded piece of queries
    and gallery, so both may be memory maps larger than memory.

    Args:
        queries: `[queries, dim]` of unit norm, of any real type; products are in float32.
        gallery: `[gallery, dim]` likewise. A row of zeros has similarity 0 to everything.
        k: number of neighbours; more than the gallery has means all.
        self_index: `[queries]` the query's own gallery row, which is left out, or -1. None: all -1.

    Raises:
        InputError: there is no row, the dimensions differ, a row is not finite, or k is below 1.

    >>> exact(np.eye(3), np.eye(3)[[0, 1, 1]], 2, self_index=np.array([0, -1, -1])).index.tolist()
    [[1, 2], [1, 2], [0, 1]]
    """
    k, queries, gallery, own = checked(queries, gallery, k, self_index)
    if len(gallery) > top_k.MOST_ROWS:
        raise InputError(
            f"A gallery has at most {top_k.MOST_ROWS:,} rows. Search pieces of it, and merge what is found:"
            " merge_neighbors."
        )
    keys = np.full([len(queries), k], top_k.EMPTY)
    slab = max(1, SLAB_VALUES // gallery.shape[1])
    for first_row in range(0, len(gallery), slab):
        rows = float32_rows("gallery", gallery, first_row, first_row + slab)
        _search_slab(keys, queries, rows, first_row, own)
    return Neighbors(*top_k.unpack(keys))


def _search_slab(
    keys: np.ndarray, queries: np.ndarray, rows: np.ndarray, first_row: int, own: np.ndarray
) -> None:
    """Merges the nearest of `rows`, which start at gallery row `first_row`, into the keys of all queries."""
    # A GPU processes the slab as a whole; two threads keep it busy.
    tile = len(rows) if gpu() else max(TILE_ROWS, 4 * keys.shape[1])
    room, workers = (GPU_SIMILARITIES, 2) if gpu() else (BLOCK_SIMILARITIES, None)
    size = min(max(1, room // tile), -(-len(queries) // (workers or cores())))
    starts = range(0, len(rows), tile)
    tiles = [(first_row + start, Gallery(rows[start : start + tile])) for start in starts]
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
    """The keys of a block of queries after merging these gallery rows."""
    block = gallery.similarities(queries)
    if len(own[0]):
        block = block.copy()
        block[own] = -np.inf
    return top_k.merge_tile(keys, block, first_row)


def _merge_on_gpu(keys, queries, gallery, first_row, own):
    """The result of `_merge_tile`; copies only the nearest rows back from the GPU."""
    similarity, row = gallery.largest(queries, min(keys.shape[1], len(gallery)), *own)
    return top_k.merge(keys, top_k.pack(similarity, first_row + row.astype(np.int64)))


def _own_places(own, first_row, rows):
    """The queries of a block whose own row is among these gallery rows, and the positions of those rows."""
    query = np.flatnonzero((own >= first_row) & (own < first_row + rows))
    return query, own[query] - first_row


def merge_neighbors(parts: Sequence[Neighbors], first_rows: Sequence[int], k: int) -> Neighbors:
    """The k nearest rows of a whole gallery, given the k nearest of each of its shards.

    Equally similar rows keep the order of the gallery. So the result is that of `exact` on the whole gallery,
    in whatever order the shards are given.

    Args:
        parts: for each shard, the neighbours of the same queries: at least k for each query, or all rows.
        first_rows: for each shard, the row of the whole gallery that its row 0 is.
        k: number of neighbours, at most the total number of columns of the parts.

    Returns:
        `[queries, k]` rows of the whole gallery and similarities; -1 and -inf if there are fewer.

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
    """The share of the exact k nearest rows that a search found, for a sample of the queries.

    A found row that ties with the k-th nearest, up to rounding, counts as found. This is not the metric
    Recall@K: labels are not used.

    Args:
        found: the result of an approximate search for all queries, at least k neighbours each.
        queries: `[queries, dim]`, as for `exact`.
        gallery: `[gallery, dim]`, as for `exact`.
        k: number of neighbours.
        self_index: `[queries]`, as for `exact`.
        sample: maximum number of queries in the sample.
        seed: seed of the sample.

    Returns:
        0 to 1; 1 if there is nothing to find.

    >>> rows = np.eye(4)
    >>> recall_against_exact(Neighbors(np.array([[0, 3]]), np.array([[1.0, 0.0]])), rows[:1], rows, 2)
    1.0
    """
    k, queries, gallery, own = checked(queries, gallery, k, self_index)
    if found.index.shape[0] != len(queries) or found.index.shape[1] < k:
        raise checks.invalid("found", f"the {k} nearest of {len(queries)} queries", found.index.shape)
    count = min(checks.integer("sample", sample, at_least=1), len(queries))
    chosen = np.sort(np.random.default_rng(seed).choice(len(queries), count, replace=False))
    nearest = exact(queries[chosen], gallery, k, own[chosen])
    return share_found(
        found._replace(index=found.index[chosen]), nearest, queries[chosen], gallery, own[chosen]
    )


def share_found(
    found: Neighbors, exact_neighbors: Neighbors, queries: np.ndarray, gallery: np.ndarray, own: np.ndarray
) -> float:
    """The recall of `recall_against_exact`, given the exact neighbours of each query.

    Args:
        found: the result of an approximate search, at least as many neighbours as `exact_neighbors` has.
        exact_neighbors: `[queries, k]` the result of `exact`.
        queries: `[queries, dim]`.
        gallery: `[gallery, dim]`.
        own: `[queries]` the query's own gallery row, or -1.
    """
    right = 0
    for query, some, nearest, similarity, self_row in zip(queries, found.index, *exact_neighbors, own):
        rows = np.setdiff1d(some[: len(nearest)], [-1, self_row])
        least = similarity[nearest >= 0].min(initial=np.inf)
        product = gallery[rows].astype(np.float32) @ query.astype(np.float32)
        right += int(np.count_nonzero(np.isin(rows, nearest) | (product >= least - ROUNDING)))
    wanted = np.count_nonzero(exact_neighbors.index >= 0)
    return float(right / wanted) if wanted else 1.0
