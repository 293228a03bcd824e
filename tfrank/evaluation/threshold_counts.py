"""Counts of the similarities of a query that are at least as large as given thresholds."""

import numpy as np

# Similarities compared at a time: few enough for the processor's cache, and the most of a row among them.
TILE, COLUMNS = 2**17, 2**14
# Rows whose one-byte marks are summed as eight to a word; each byte of the sum can hold up to 255.
ROWS = 128


def count_at_least(similarity: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Counts, for each threshold of each row, the values of the row that are at least as large.

    Args:
        similarity: `[rows, columns]` float32.
        thresholds: `[rows, thresholds]` float32, those of a row ascending. The time is proportional to the
            number that is below +inf.

    Returns:
        `[rows, thresholds]` int64.

    >>> count_at_least(np.float32([[1, 2, 3], [4, 4, 5]]), np.float32([[2, 9], [4, 5]]))
    array([[2, 0],
           [3, 1]])
    """
    counts = np.zeros(thresholds.shape, np.int64)
    # Equal parts of the columns, of whole words of 64 marks.
    parts = max(1, -(-similarity.shape[1] // COLUMNS))
    width = max(1, -(-similarity.shape[1] // (64 * parts))) * 64
    for tile, rows, _ in _tiles(similarity, max(1, TILE // width), width):
        marks = np.zeros([len(tile), width], bool)
        there = marks[:, : tile.shape[1]]
        for number, threshold in enumerate(thresholds[rows].T):
            if np.all(threshold == np.inf):
                break
            np.greater_equal(tile, threshold[:, None], out=there)
            words = np.packbits(marks).view(np.uint64).reshape(len(tile), -1)
            counts[rows, number] += np.bitwise_count(words).sum(axis=1, dtype=np.int64)
    return counts


def count_at_least_in_columns(similarity: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Computes `count_at_least(similarity.T, thresholds)` without transposing."""
    counts = np.zeros(thresholds.shape[::-1], np.int64)
    width = min(2048, -(-similarity.shape[1] // 8) * 8)
    for tile, _, columns in _tiles(similarity, ROWS, width):
        marks = np.zeros([len(tile), width], bool)
        for count, threshold in zip(counts, np.ascontiguousarray(thresholds[columns].T)):
            np.greater_equal(tile, threshold, out=marks[:, : tile.shape[1]])
            count[columns] += marks.view(np.uint64).sum(axis=0).view(np.uint8)[: tile.shape[1]]
    return counts.T


def _tiles(similarity, height, width):
    for row in range(0, len(similarity), height):
        for column in range(0, similarity.shape[1], width):
            rows, columns = slice(row, row + height), slice(column, column + width)
            yield similarity[rows, columns], rows, columns
