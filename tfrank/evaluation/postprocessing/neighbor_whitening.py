"""Whitening by what differs between neighbours: learnt without labels, on the photos that are searched.

With x of images, and P the pairs (i, j) that are among each other's nearest, of weights

    c_ij = min(1, 2 |x_i - x_j| / median over P)^2 / r_ij^2

where r_ij is the larger of the ranks that each has among the other's nearest:

    S = mean over P, weighted, of u_ij u_ij^T,    u_ij = (x_i - x_j) / |x_i - x_j|
    z = (x - mean) A,    A = ((1 - a) S + a I / dim)^(-1/2)
    e = normalize(z V diag(f)),    f_k = max(1/5, 1 - w_k / t_k)

where V holds the principal directions of the z of all images, t_k is the variance of z along direction k, and
w_k half of the weighted mean of the squared differences of pairs there.

In what neighbours differ, images of one kind differ, such as by pose and light; it counts for less then. This
is relevant component analysis (Bar-Hillel et al., ICML 2003), with mutual neighbours in the place of pairs
that are known to be alike (as Radenovic et al. learn whitening from matching photos, TPAMI 2018,
arXiv 1711.02512). Where kinds have few images, only the first neighbours are of one kind, hence the ranks.
Near copies, which hardly differ, tell nothing. f is Wiener's filter: the part of the variance that is between
kinds. Directions in which all images differ no more than neighbours do are noise, and count for a fifth.
"""

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.normalize import SMALLEST_NORM
from tfrank.common.spread import spread
from tfrank.evaluation.array_checks import checked_embeddings, unit_rows
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.postprocessing.whitening import Whitening, mean_and_covariance

# Rows that a whitening is learnt on.
MOST = 20_000
# What counts for nothing here may count for images that come later.
LEAST_WEIGHT = 0.2
# Differences multiplied at a time.
BLOCK_ROWS = 2**13


def learn_neighbor_whitening(
    embeddings: np.ndarray, *, neighbors: int = 10, shrinkage: float = 0.7, most: int = MOST
) -> Whitening:
    """Learns the whitening of embeddings within mutual neighbours; see the module.

    Args:
        embeddings: `[images, dim]` floats, of any norm, at least two.
        neighbors: two images are a pair if each is among so many nearest of the other, by the cosine of what
            is left without the mean.
        shrinkage: a of 1,000 images and more, above 0 up to 1, see `shrinkage_of`. At 1 A does not depend on
            S.
        most: it is learnt on so many rows, evenly spread, as the search for neighbours of all takes long.

    Raises:
        InputError: an argument is out of range, an embedding is not finite, or all are equal.

    >>> x = np.array([[0.8, 0.6], [0.96, 0.28], [-0.8, 0.6], [-0.96, 0.28]])  # Pairs differ in the second.
    >>> left, up = np.linalg.norm(learn_neighbor_whitening(x, neighbors=1).projection, axis=1)
    >>> bool(left > 1.04 * up)
    True
    """
    neighbors = checks.integer("neighbors", neighbors, at_least=1)
    most = checks.integer("most", most, at_least=2)
    embeddings = checked_embeddings("embeddings", embeddings)
    rows = unit_rows(embeddings[spread(len(embeddings), most)])[0]
    count, dim = rows.shape
    shrinkage = shrinkage_of(count, checks.number("shrinkage", shrinkage, above=0, at_most=1))
    mean, covariance = mean_and_covariance(rows)
    mean = mean.astype(np.float32)
    within, differences = _products(rows, *mutual_neighbors(unit_rows(rows - mean)[0], neighbors))
    variances, directions = np.linalg.eigh((1 - shrinkage) * within + shrinkage / dim * np.eye(dim))
    whitening = directions / np.sqrt(variances)
    everywhere, directions = np.linalg.eigh(whitening.T @ covariance @ whitening)
    projection = whitening @ directions[:, ::-1]
    noise = np.sum(projection * (differences @ projection), axis=0) / 2
    return Whitening(mean, (projection * _kept(everywhere[::-1], noise)).astype(np.float32))


def _products(rows, first, second, rank):
    """Returns S, and the same of differences that are not of unit length, `[dim, dim]` each."""
    length = [np.linalg.norm(pairs, axis=1) for _, pairs in _differences(rows, first, second)]
    if not any(some.any() for some in length):
        raise InputError("No two embeddings differ, so nothing can be learnt from neighbours.")
    length = np.concatenate(length)
    weights = np.minimum(1, 2 * length / max(np.median(length), SMALLEST_NORM)) ** 2 / rank**2
    weights /= weights.sum()
    products = np.zeros([2, rows.shape[1], rows.shape[1]])
    for block, pairs in _differences(rows, first, second):
        for sums, some in zip(products, (unit_rows(pairs)[0], pairs)):
            some = some.astype(np.float64)
            sums += (some * weights[block, None]).T @ some
    return products


def _differences(rows, first, second):
    for start in range(0, len(first), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        yield block, rows[first[block]] - rows[second[block]]


def _kept(everywhere, noise):
    """Returns f, `[dim]`; `LEAST_WEIGHT` where images do not differ."""
    differ = everywhere > 1e-9 * everywhere.max()
    share = np.divide(noise, everywhere, where=differ, out=np.ones_like(everywhere))
    return np.maximum(LEAST_WEIGHT, 1 - share)


def shrinkage_of(images: int, least: float) -> float:
    """Returns a, how far S is pulled towards the identity: the fewer images, the farther.

    >>> [round(shrinkage_of(images, 0.6), 2) for images in (50, 100, 300, 1000, 10_000)]
    [0.9, 0.9, 0.76, 0.6, 0.6]
    """
    return float(np.interp(np.log10(images), [2, 3], [max(0.9, least), least]))


def mutual_neighbors(rows: np.ndarray, neighbors: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the pairs of rows that are among each other's nearest, and the ranks among these.

    Args:
        rows: `[images, dim]` of unit norm.
        neighbors: number of nearest rows of each, without itself.

    Returns:
        `[pairs]` first rows, `[pairs]` second rows, and `[pairs]` the larger of the two ranks that each has
        among the other's nearest, from 1 on.

    >>> first, second, rank = mutual_neighbors(np.array([[1, 0], [0.8, 0.6], [0, 1]]), 1)
    >>> first.tolist(), second.tolist(), rank.tolist()
    ([0], [1], [1])
    """
    nearest = exact(rows, rows, neighbors, np.arange(len(rows))).index
    row, column = np.nonzero(nearest >= 0)
    ends = np.sort([row, nearest[row, column]], axis=0)
    # Both ends name a mutual pair, which therefore occurs twice.
    pairs, place, counts = np.unique(ends[0] * len(rows) + ends[1], return_inverse=True, return_counts=True)
    rank = np.zeros(len(pairs), int)
    np.maximum.at(rank, place, column + 1)
    return *np.divmod(pairs[counts == 2], len(rows)), rank[counts == 2]
