"""The label of images without a class: such an image is neither positive nor negative, and no query."""

import numbers

import numpy as np

from tfrank.common import checks

# The label of images without a class in records, lists and arrays of evaluation.
UNKNOWN = -1


def checked(ignore_label: int | None) -> int | None:
    """Returns the label as an int, or None if every label is a class.

    Raises:
        InputError: it is neither None nor an integer.
    """
    if ignore_label is None:
        return None
    if isinstance(ignore_label, bool) or not isinstance(ignore_label, numbers.Integral):
        raise checks.invalid("ignore_label", "an integer, such as -1, or None", ignore_label)
    return int(ignore_label)


def kept(labels: np.ndarray, ignore_label: int | None) -> np.ndarray:
    """Returns which of the labels are classes, `[n]` bool.

    >>> kept(np.array([3, -1, 4]), -1).tolist()
    [True, False, True]
    """
    return np.ones(len(labels), bool) if ignore_label is None else labels != ignore_label
