"""Ranking by Euclidean distance with the products that rank by the cosine."""

import numpy as np

# Rows processed together.
BLOCK = 4096


def euclidean_rows(queries: np.ndarray, gallery: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose product is the larger, the smaller the Euclidean distance of the given rows.

        x = (query - m) / c,  y = (gallery - m) / c,  [x, 1] . [y, -|y|^2 / 2] = (|x|^2 - |x - y|^2) / 2

    so that a query's gallery rows are in the order of the distance. m is near the gallery's mean, so that the
    norms are small, and a multiple of a power of 2 of the size of the values less the mean; c is a power of 2
    too. So rows of few digits stay exact, and with them equal distances. In general products are rounded to
    float32: squared distances that differ by less than about 1e-6 of the largest squared norm of x and y may
    come in either order.

    Args:
        queries: `[queries, dim]` finite floats of any norm.
        gallery: `[gallery, dim]` likewise.

    Returns:
        `[queries, dim + 1]` and `[gallery, dim + 1]` float32, for `search.exhaustive.exact` or
        `retrieval_ranks.positive_ranks`.

    >>> x, y = euclidean_rows(np.array([[1.0, 0.0]]), np.array([[3.0, 0.0], [1.5, 0.0], [1.0, 2.0]]))
    >>> np.argsort(-(x @ y.T)).tolist()
    [[1, 0, 2]]
    """
    mean = np.mean(gallery, axis=0, dtype=np.float64)
    spread = 2.0 ** np.ceil(np.log2(_largest(queries, gallery, mean) or 1.0))
    mean = np.round(mean / spread) * spread
    x, y = (_scaled(rows, mean, spread) for rows in (queries, gallery))
    x[:, -1] = 1
    for start in range(0, len(y), BLOCK):
        block = y[start : start + BLOCK, :-1].astype(np.float64)
        y[start : start + BLOCK, -1] = -np.einsum("nd,nd->n", block, block) / 2
    return x, y


def _largest(queries, gallery, mean):
    """The largest absolute value of all rows less the mean."""
    return max(
        float(np.abs(_less(rows, start, mean)).max())
        for rows in (queries, gallery)
        for start in range(0, len(rows), BLOCK)
    )


def _less(rows, start, mean):
    return rows[start : start + BLOCK].astype(np.float64) - mean


def _scaled(rows, mean, spread):
    """`[rows, dim + 1]` float32 (rows - mean) / spread; the last column is not set."""
    result = np.empty([len(rows), rows.shape[1] + 1], np.float32)
    for start in range(0, len(rows), BLOCK):
        result[start : start + BLOCK, :-1] = _less(rows, start, mean) / spread
    return result
