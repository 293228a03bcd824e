"""Whitening by what differs between neighbours: learnt without labels, on the photos that are searched.

With x of images, centred, and P the pairs of images that are among each other's nearest:

    S = mean over (i, j) in P of u_ij u_ij^T,    u_ij = (x_i - x_j) / |x_i - x_j|
    e' = normalize((e - mean) ((1 - a) S + a I / dim)^(-1/2))

In what neighbours differ, images of one kind differ, such as by pose and light; it counts for less then. This
is relevant component analysis (Bar-Hillel et al., ICML 2003), with mutual neighbours in the place of pairs
that are known to be alike (as Radenovic et al. learn whitening from matching photos, TPAMI 2018,
arXiv 1711.02512). Differences are of unit length, so that near copies, which hardly differ, tell no less.
"""

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.spread import spread
from tfrank.evaluation.array_checks import checked_embeddings, unit_rows
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.postprocessing.whitening import Whitening

# Options for models that were trained: classes have shown them already what is to count less.
TRAINED = {"neighbors": 10, "shrinkage": 0.8}
# Rows that a whitening is learnt on.
MOST = 20_000
# Differences multiplied at a time.
BLOCK_ROWS = 2**13


def learn_neighbor_whitening(
    embeddings: np.ndarray, *, neighbors: int = 5, shrinkage: float = 0.6, most: int = MOST
) -> Whitening:
    """Learns the whitening of embeddings within mutual neighbours; see the module.

    Args:
        embeddings: `[images, dim]` floats, of any norm, at least two.
        neighbors: two images are a pair if each is among so many nearest of the other, by the cosine of what
            is left without the mean.
        shrinkage: a of 1,000 images and more, above 0 up to 1, see `shrinkage_of`. At 1 the whitening only
            subtracts the mean.
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
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    first, second = mutual_neighbors(unit_rows(rows - mean)[0], neighbors)
    within = np.zeros([dim, dim])
    for start in range(0, len(first), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        differences = unit_rows(rows[first[block]] - rows[second[block]])[0].astype(np.float64)
        within += differences.T @ differences
    if (total := np.trace(within)) == 0:
        raise InputError("No two embeddings differ, so nothing can be learnt from neighbours.")
    variances, directions = np.linalg.eigh((1 - shrinkage) / total * within + shrinkage / dim * np.eye(dim))
    return Whitening(mean, (directions / np.sqrt(variances)).astype(np.float32))


def shrinkage_of(images: int, least: float) -> float:
    """Returns a, how far S is pulled towards the identity: the fewer images, the farther.

    >>> [round(shrinkage_of(images, 0.6), 2) for images in (50, 100, 300, 1000, 10_000)]
    [0.9, 0.9, 0.76, 0.6, 0.6]
    """
    return float(np.interp(np.log10(images), [2, 3], [max(0.9, least), least]))


def mutual_neighbors(rows: np.ndarray, neighbors: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs of rows, `[pairs]` and `[pairs]`, that are among each other's nearest.

    Args:
        rows: `[images, dim]` of unit norm.
        neighbors: number of nearest rows of each, without itself.

    >>> first, second = mutual_neighbors(np.array([[1, 0], [0.8, 0.6], [0, 1]]), 1)
    >>> first.tolist(), second.tolist()
    ([0], [1])
    """
    nearest = exact(rows, rows, neighbors, np.arange(len(rows))).index
    row, column = np.nonzero(nearest >= 0)
    ends = np.sort([row, nearest[row, column]], axis=0)
    # Both ends name a mutual pair, which therefore occurs twice.
    pairs, counts = np.unique(ends[0] * len(rows) + ends[1], return_counts=True)
    return np.divmod(pairs[counts == 2], len(rows))
