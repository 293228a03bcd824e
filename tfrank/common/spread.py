"""Some of many rows, evenly spread."""

import numpy as np


def spread(count: int, most: int) -> np.ndarray:
    """Returns the numbers of at most `most` of `count` rows, ascending and evenly spread, with both ends.

    >>> spread(9, 3).tolist(), spread(2, 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(int)
