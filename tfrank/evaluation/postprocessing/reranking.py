"""k-reciprocal re-ranking (Zhong et al., CVPR 2017, arXiv 1701.08398), sparse: never queries x gallery.

With d the distance of two images, N(p, k) the k nearest of image p, and R(p, k) its reciprocal neighbours,
the q in N(p, k) with p in N(q, k) (section 3.2):

    R*(p) = R(p, k1) with every R(q, k1/2), q in R(p, k1), of which at least 2/3 lie in R(p, k1)
    V_p[j] = exp(-d(p, j)) for j in R*(p), else 0 (section 3.3); then its mean over N(p, k2) (section 3.4)
    d_J(p, g) = 1 - sum_j min(V_p[j], V_g[j]) / sum_j max(V_p[j], V_g[j])
    d*(p, g) = (1 - lambda) d_J(p, g) + lambda d(p, g) (section 3.5)
"""

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from tfrank.common import checks
from tfrank.evaluation.array_checks import checked_embeddings, checked_self_index
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.parallel import Gallery, in_parallel

# Similarities that a thread holds at a time: 16 MiB in float32.
BLOCK_SIMILARITIES = 2**22
# Values in a gathered block of embeddings.
BLOCK_NUMBERS = 2**22


def k_reciprocal_blocks(
    queries: np.ndarray,
    gallery: np.ndarray,
    *,
    k1: int = 20,
    k2: int = 6,
    lambda_value: float = 0.3,
    self_index: np.ndarray | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields re-ranked similarities, -d*, for `ranks.ranks_of_blocks`.

    Details that the paper leaves open, or states for a single query:

    - Neighbours are searched among all images, gallery and queries. An image is its own neighbour: N(p, k1)
      is p and its k1 nearest others, N(p, k2) is p and its k2 - 1 nearest others (k2 = 1: no local query
      expansion), and k1/2 is rounded down. Among equally near images, gallery order decides.
    - d is the squared Euclidean distance of unit vectors, 2 - 2s, divided by that of the query's farthest
      image. So d, like d_J, is at most 1.
    - V is not normalised to sum 1. This follows the paper; some public implementations do normalise it.

    d_J is 1 for all images without a common neighbour. Among these d decides, unless lambda is 0.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        k1: number of neighbours among which reciprocal ones are taken, at least 1.
        k2: number of neighbours for local query expansion, at least 1.
        lambda_value: lambda, the weight of d, 0 to 1. 1 keeps the original ranking.
        self_index: `[queries]` the query's own gallery row, whose similarity becomes -inf, or -1. None: all
            -1. A query that is also a gallery row must be given here, or it counts twice.

    Yields:
        (first query, `[block, gallery]` float32 similarities, -1 to 0).

    Raises:
        InputError: an argument is out of range, or the shapes do not fit.

    >>> x = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
    >>> ((start, block),) = k_reciprocal_blocks(x, x, k1=1, k2=1, self_index=np.arange(3))
    >>> block.astype(float).round(2).tolist()  # Rows 0 and 1, and no others, are nearest to each other.
    [[-inf, -0.26, -1.0], [-0.35, -inf, -1.0], [-1.0, -0.82, -inf]]
    """
    queries = checked_embeddings("queries", queries).astype(np.float32, copy=False)
    gallery = checked_embeddings("gallery", gallery, dim=queries.shape[1]).astype(np.float32, copy=False)
    k1 = checks.integer("k1", k1, at_least=1)
    k2 = checks.integer("k2", k2, at_least=1)
    lambda_value = checks.number("lambda_value", lambda_value, at_least=0, at_most=1)
    own = checked_self_index(self_index, len(queries), len(gallery))
    return _blocks(queries, gallery, k1, k2, lambda_value, own)


def _blocks(queries, gallery, k1, k2, lambda_value, own) -> Iterator[tuple[int, np.ndarray]]:
    """Computes `k_reciprocal_blocks` from checked arguments."""
    apart = own < 0
    images = np.concatenate([gallery, queries[apart]]) if apart.any() else gallery
    image_of_query = np.where(apart, len(gallery) + np.cumsum(apart) - 1, own)
    # The farthest image is the nearest one to the opposite point. If all images are equal, the distance is 0,
    # so it is raised to a positive number.
    farthest = np.maximum(2 + 2 * exact(-images, images, 1).similarity[:, 0], np.finfo(np.float32).tiny)
    encoded = _encode(images, farthest, k1, k2)
    encoded_queries, encoded_gallery = encoded[image_of_query], encoded[: len(gallery)]
    holders = encoded_gallery.T.tocsr()
    query_sums, gallery_sums = encoded_queries.sum(axis=1), encoded_gallery.sum(axis=1)
    factor = Gallery(gallery)
    size = max(1, BLOCK_SIMILARITIES // len(gallery))

    def similarities_of(start):
        block = slice(start, start + size)
        similarity = factor.similarities(queries[block])
        result = -np.float32(lambda_value) * _distance(similarity, farthest[image_of_query[block], None])
        for row, query in zip(result, range(start, start + len(result))):
            shared = _sum_of_minima(encoded_queries[[query]], holders)
            union = query_sums[query] + gallery_sums - shared
            row -= (1 - lambda_value) * (1 - shared / union)
            if own[query] >= 0:
                row[own[query]] = -np.inf
        return start, result

    return in_parallel(similarities_of, range(0, len(queries), size))


def _distance(similarity: np.ndarray, farthest: np.ndarray) -> np.ndarray:
    """d, clipped to 0 to 1 against rounding errors."""
    return np.clip((2 - 2 * similarity) / farthest, 0, 1)


def _encode(images: np.ndarray, farthest: np.ndarray, k1: int, k2: int) -> sparse.csr_array:
    """`[images, images]` the vectors V after local query expansion."""
    every = np.arange(len(images))
    others = exact(images, images, min(max(k1, k2 - 1), len(images)), every).index
    neighbors = np.concatenate([every[:, None], others], axis=1)
    reciprocal, half = (_reciprocal(_marks(neighbors[:, : k + 1])) for k in (k1, k1 // 2))
    # For each q in R(p, k1): the number of images in R(q, k1/2) that are also in R(p, k1).
    common = (reciprocal @ half.T).multiply(reciprocal).tocoo()
    p, q = common.row, common.col
    joins = 3 * common.data >= 2 * half.sum(axis=1)[q]
    joining = sparse.csr_array((common.data[joins], (p[joins], q[joins])), shape=common.shape)
    expanded = (reciprocal + joining @ half).tocoo()
    p, j = expanded.row, expanded.col
    weights = np.exp(-_distance(_similarities_of_pairs(images, p, j), farthest[p]))
    encoded = sparse.csr_array((weights, (p, j)), shape=expanded.shape)
    nearest = _marks(neighbors[:, :k2])
    return sparse.csr_array((nearest @ encoded).multiply(1 / nearest.sum(axis=1)[:, None]))


def _marks(neighbors: np.ndarray) -> sparse.csr_array:
    """`[images, images]` int32 with 1 for each neighbour; index -1 means no neighbour."""
    there = neighbors >= 0
    start = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    ones = np.ones(start[-1], np.int32)
    return sparse.csr_array((ones, neighbors[there], start), shape=[len(neighbors)] * 2)


def _reciprocal(marks: sparse.csr_array) -> sparse.csr_array:
    """`[images, images]` with 1 for each pair of images that are neighbours of each other."""
    return sparse.csr_array(marks.multiply(marks.T))


def _similarities_of_pairs(images: np.ndarray, p: np.ndarray, j: np.ndarray) -> np.ndarray:
    """`[pairs]` float32 similarities, computed in blocks."""
    size = max(1, BLOCK_NUMBERS // images.shape[1])
    blocks = (slice(start, start + size) for start in range(0, len(p), size))
    return np.concatenate([np.einsum("nd,nd->n", images[p[block]], images[j[block]]) for block in blocks])


def _sum_of_minima(vector: sparse.csr_array, holders: sparse.csr_array) -> np.ndarray:
    """`[gallery]` sums over j of min(vector[j], V_g[j]); `holders[j, g]` is V_g[j]."""
    rows_of_vector = holders[vector.indices]
    lengths = np.diff(rows_of_vector.indptr)
    minima = np.minimum(rows_of_vector.data, np.repeat(vector.data, lengths))
    return np.bincount(rows_of_vector.indices, minima, minlength=holders.shape[1])
