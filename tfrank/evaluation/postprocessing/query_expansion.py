"""Query expansion: moves a query or a gallery row towards its nearest neighbours."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from scipy import sparse

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize
from tfrank.evaluation.array_checks import checked_embeddings, checked_self_index
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.neighbors import Neighbors

# Rows expanded at a time.
BLOCK_ROWS = 2**14


def expand_queries(
    queries: np.ndarray,
    gallery: np.ndarray,
    *,
    k: int = 10,
    alpha: float = 2.0,
    self_index: np.ndarray | None = None,
    search: Callable[..., Neighbors] = exact,
) -> np.ndarray:
    """Alpha query expansion (Radenović et al., TPAMI 2018, arXiv 1711.02512, section 3.3).

    q' = normalize(q + sum over the k nearest x of max(s, 0)^alpha x), with s the cosine of q and x.
    alpha = 0 is average query expansion: all k neighbours have weight 1, even those with negative s.
    alpha = 2, k = 10: mAP_Q (arXiv 1906.07589, section 4.4). A query of zeros stays zero.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        k: number of neighbours, at least 1. In a smaller gallery, all rows are neighbours.
        alpha: at least 0.
        self_index: `[queries]` the query's own gallery row, which is left out, or -1. None: all -1.
        search: a search such as `exact`, or `find` of `nearest.searchers` by a name.

    Returns:
        `[queries, dim]` float32, unit norm.

    Raises:
        InputError: an argument is out of range, or the shapes do not fit.

    >>> query, gallery = np.float32([[1, 0]]), np.float32([[0.6, 0.8], [-1, 0]])
    >>> expand_queries(query, gallery, k=1).round(3).tolist()  # (1, 0) + 0.36 (0.6, 0.8)
    [[0.9729999899864197, 0.23000000417232513]]
    """
    queries = checked_embeddings("queries", queries).astype(np.float32, copy=False)
    gallery = checked_embeddings("gallery", gallery, dim=queries.shape[1]).astype(np.float32, copy=False)
    k = checks.integer("k", k, at_least=1)
    alpha = checks.number("alpha", alpha, at_least=0)
    own = checked_self_index(self_index, len(queries), len(gallery))
    found = search(queries, gallery, min(k, len(gallery)), own)
    expanded = np.empty(queries.shape, np.float32)
    for start in range(0, len(queries), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        nearest = Neighbors(found.index[part], found.similarity[part])
        expanded[part] = _expanded(queries[part], gallery, nearest, alpha)
    return expanded


def augment_database(
    gallery: np.ndarray, *, k: int = 10, alpha: float = 2.0, search: Callable[..., Neighbors] = exact
) -> np.ndarray:
    """Expands every gallery row by its k nearest other rows: `expand_queries` of the gallery with itself.

    Done once per gallery, for any number of queries (database-side augmentation: Arandjelović and Zisserman,
    CVPR 2012, with the weights of alpha query expansion).

    Args:
        gallery: `[gallery, dim]` float32, unit norm.
        k, alpha, search: see `expand_queries`.

    Returns:
        `[gallery, dim]` float32, unit norm.

    >>> augment_database(np.float32([[1, 0], [0.6, 0.8], [-1, 0]]), k=1).round(3).tolist()[2]
    [-1.0, 0.0]
    """
    gallery = checked_embeddings("gallery", gallery)
    return expand_queries(
        gallery, gallery, k=k, alpha=alpha, self_index=np.arange(len(gallery)), search=search
    )


def _expanded(queries: np.ndarray, gallery: np.ndarray, nearest: Neighbors, alpha: float) -> np.ndarray:
    """Computes `expand_queries` for given neighbours, without an array `[queries, k, dim]`."""
    there = (nearest.index >= 0) & queries.any(axis=1, keepdims=True)
    # With alpha = 0, a weight is 0^0 = 1 for negative similarities too.
    weights = np.maximum(nearest.similarity[there], 0) ** np.float32(alpha)
    start = np.concatenate([[0], np.cumsum(np.sum(there, axis=1))])
    shape = len(queries), len(gallery)
    sums = sparse.csr_array((weights, nearest.index[there], start), shape=shape) @ gallery
    return l2_normalize(tf.constant(queries + sums)).numpy()
