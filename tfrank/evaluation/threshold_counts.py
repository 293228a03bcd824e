"""Counts of the similarities of a query that are at least as large as given thresholds."""

import numpy as np

# Size of the tile of similarities compared at a time, so that it stays in the processor's cache.
ROWS, COLUMNS = 128, 2048
# One-byte marks are summed as 8-byte words; each byte of the sum can hold up to 255.
MARKS = 8


def count_at_least(similarity: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Counts, for each threshold of each row, the values of the row that are at least as large.

    Args:
        similarity: `[rows, columns]` float32.
        thresholds: `[rows, thresholds]` float32. The time is proportional to their number.

    Returns:
        `[rows, thresholds]` int64.

    >>> count_at_least(np.float32([[1, 2, 3], [4, 4, 5]]), np.float32([[2, 9], [4, 5]]))
    array([[2, 0],
           [3, 1]])
    """
    counts = np.zeros(thresholds.shape, np.int64)
    for tile, rows, _ in _tiles(similarity):
        marks = np.zeros([len(tile), COLUMNS], bool)
        for number, threshold in enumerate(thresholds[rows].T):
            np.greater_equal(tile, threshold[:, None], out=marks[:, : tile.shape[1]])
            words = marks.view(np.uint64).reshape(len(tile), MARKS, -1).sum(axis=2)
            counts[rows, number] += words.view(np.uint8).sum(axis=1, dtype=np.int64)
    return counts


def count_at_least_in_columns(similarity: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Computes `count_at_least(similarity.T, thresholds)` without transposing."""
    counts = np.zeros(thresholds.shape[::-1], np.int64)
    for tile, _, columns in _tiles(similarity):
        marks = np.zeros([len(tile), COLUMNS], bool)
        for count, threshold in zip(counts, np.ascontiguousarray(thresholds[columns].T)):
            np.greater_equal(tile, threshold, out=marks[:, : tile.shape[1]])
            count[columns] += marks.view(np.uint64).sum(axis=0).view(np.uint8)[: tile.shape[1]]
    return counts.T


def _tiles(similarity):
    for row in range(0, len(similarity), ROWS):
        for column in range(0, similarity.shape[1], COLUMNS):
            rows, columns = slice(row, row + ROWS), slice(column, column + COLUMNS)
            yield similarity[rows, columns], rows, columns
