"""Nearest neighbours, exact or by ScaNN, behind one signature."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfrank import checks
from tfrank.checks import InputError

# Similarities held at a time: 256 MiB in float32.
BLOCK_SIMILARITIES = 2**26


class Neighbors(NamedTuple):
    """The nearest gallery rows of each query, nearest first.

    Attributes:
        index: `[queries, k]` int64 gallery rows; -1 where there are fewer than k.
        similarity: `[queries, k]` float32 cosine; -inf where there are fewer than k.
    """

    index: np.ndarray
    similarity: np.ndarray


def exact(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None = None
) -> Neighbors:
    """The k nearest rows of the gallery by exhaustive search, in blocks of queries.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        k: how many.
        self_index: `[queries]` the query's own gallery row, which is left out, or -1. None: all -1.
    """
    found = min(k, len(gallery))
    index = np.full([len(queries), k], -1, np.int64)
    similarity = np.full([len(queries), k], -np.inf, np.float32)
    for start, block in similarity_blocks(queries, gallery, self_index):
        rows = slice(start, start + len(block))
        # Of equals, the one that comes first in the gallery, also at the last place.
        last = -np.partition(-block, found - 1, axis=1)[:, found - 1 : found]
        equal = block == last
        room = found - np.sum(block > last, axis=1, keepdims=True)
        keep = (block > last) | (equal & (np.cumsum(equal, axis=1) <= room))
        nearest = np.nonzero(keep)[1].reshape(len(block), found)
        near = np.take_along_axis(block, nearest, axis=1)
        order = np.lexsort((nearest, -near), axis=1)
        similarity[rows, :found] = np.take_along_axis(near, order, axis=1)
        index[rows, :found] = np.take_along_axis(nearest, order, axis=1)
    index[similarity == -np.inf] = -1
    return Neighbors(index, similarity)


def scann(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None = None
) -> Neighbors:
    """As `exact`, by ScaNN. Brute force, which also fits any size of gallery."""
    try:
        from scann import scann_ops_pybind
    except ImportError as error:
        raise InputError(
            f"ScaNN cannot be imported ({error}). On Linux on x86-64: pip install 'scann>=1.4.2,<1.5'."
            " Elsewhere search exactly: --neighbors=exact."
        ) from None
    # One more than asked, since the query itself may be among them.
    wanted = min(k + 1, len(gallery))
    searcher = scann_ops_pybind.builder(gallery, wanted, "dot_product").score_brute_force().build()
    index, similarity = searcher.search_batched_parallel(queries, final_num_neighbors=wanted)
    index = index.astype(np.int64)
    # ScaNN pads with row 0 at distance NaN.
    keep = np.isfinite(similarity)
    if self_index is not None:
        keep &= index != self_index[:, None]
    # Kept ones first, in their order; then as many as were asked for.
    order = np.argsort(~keep, axis=1, kind="stable")[:, :k]
    keep = np.take_along_axis(keep, order, axis=1)
    short = [(0, 0), (0, k - order.shape[1])]
    index = np.where(keep, np.take_along_axis(index, order, axis=1), -1)
    similarity = np.where(keep, np.take_along_axis(similarity, order, axis=1), -np.inf)
    return Neighbors(
        np.pad(index, short, constant_values=-1),
        np.pad(similarity.astype(np.float32), short, constant_values=-np.inf),
    )


SEARCHES: dict[str, Callable[..., Neighbors]] = {"exact": exact, "scann": scann}


def search(name: str) -> Callable[..., Neighbors]:
    """The search of that name: "exact" or "scann"."""
    return SEARCHES[checks.one_of("neighbors", name, SEARCHES)]


def similarity_blocks(queries: np.ndarray, gallery: np.ndarray, self_index: np.ndarray | None):
    """Yields (first query, `[block, gallery]` similarities), the query's own row at -inf."""
    size = max(1, BLOCK_SIMILARITIES // max(len(gallery), 1))
    for start in range(0, len(queries), size):
        block = queries[start : start + size] @ gallery.T
        if self_index is not None:
            own = self_index[start : start + size]
            rows = np.flatnonzero(own >= 0)
            block[rows, own[rows]] = -np.inf
        yield start, block
