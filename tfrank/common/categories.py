"""Categories of classes: a class has one category or, at several levels, coarser and coarser ones."""

from typing import Any

import numpy as np

from tfrank.common.checks import InputError, invalid


def checked_categories(name: str, categories: Any, labels: np.ndarray) -> np.ndarray:
    """The categories of `[n]` labels as `[n, levels]` int64.

    Args:
        name: the argument's name, for messages.
        categories: `[n]` integers, or `[n, levels]`, from finer to coarser categories.
        labels: `[n]` integers.

    >>> checked_categories("categories", [7, 8], np.array([0, 1])).tolist()
    [[7], [8]]
    """
    found, rows = np.asarray(categories), len(labels)
    if found.dtype.kind not in "iu" or found.ndim not in (1, 2) or len(found) != rows:
        expected = f"{rows} integers, or {rows} rows of integers, one for each label"
        raise invalid(name, expected, f"{found.dtype} {found.shape}")
    return found.reshape(rows, -1).astype(np.int64)


def categories_of_classes(labels: np.ndarray, categories: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels, `[classes]`, and their categories, `[classes, levels]`.

    Args:
        labels: `[n]` integers.
        categories: `[n, levels]` integers.

    Raises:
        InputError: a label has different categories.

    >>> categories_of_classes(np.array([4, 3, 4]), np.array([[7], [8], [7]]))
    (array([3, 4]), array([[8],
           [7]]))
    """
    classes, first, place = np.unique(labels, return_index=True, return_inverse=True)
    wrong = np.flatnonzero(np.any(categories[first][place] != categories, axis=1))
    if len(wrong):
        image = wrong[0]
        both = [" ".join(map(str, categories[row])) for row in (first[place[image]], image)]
        raise InputError(
            f"Class {labels[image]} has the categories {both[0]} and {both[1]}, but a class has one. Correct"
            " the categories."
        )
    return classes, categories[first]


def levels_of(categories: np.ndarray) -> list[np.ndarray]:
    """`[n]` numbers of the categories at each level, the coarsest first.

    Two rows have one number at a level if they share its category and all coarser ones.

    Args:
        categories: `[n, levels]` integers, from finer to coarser categories.

    >>> [numbers.tolist() for numbers in levels_of(np.array([[1, 8], [2, 8], [1, 9]]))]
    [[0, 0, 1], [0, 2, 1]]
    """
    return [
        np.unique(categories[:, level:], axis=0, return_inverse=True)[1].reshape(-1)
        for level in reversed(range(categories.shape[1]))
    ]
