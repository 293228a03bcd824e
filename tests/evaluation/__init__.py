"""What the tests of evaluation share: embeddings by hand, with and without ties, in blocks of any size."""

import numpy as np
import pytest

from tfrank.evaluation.nearest import exhaustive, searchers

# Classes of 1, 1, 2, 7, 19 and 30 images, mixed.
LABELS = np.random.default_rng(0).permutation(
    np.repeat([2**40, 2**40 + 1, -3, 0, 9, 5], [1, 1, 2, 7, 19, 30])
)


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _clustered():
    """Rows about a direction of each class, so that metrics are neither 0 nor 1."""
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(6, 12))[np.unique(LABELS, return_inverse=True)[1]]
    return _unit(centers + 1.5 * rng.normal(size=centers.shape))


# Entries of 1/4 and -1/4: similarities are exact, and most of them tied.
_TIED = np.random.default_rng(2).choice([-0.25, 0.25], size=(60, 16)).astype(np.float32)
# 60 rows; "repeated" are 15 rows four times, far apart.
ROWS = {"distinct": _clustered(), "tied": _TIED, "repeated": np.tile(_TIED[:15], [4, 1])}

every_rows = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
every_search = pytest.mark.parametrize("search", searchers.SEARCHES)
in_any_blocks = pytest.mark.parametrize(
    "block_similarities", [exhaustive.BLOCK_SIMILARITIES, 7 * 60, 1], ids=["one block", "blocks of 7", "of 1"]
)


def on_circle(*degrees):
    """Rows on the unit circle: the smaller the angle between two, the more similar they are."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def by(search):
    """Takes the place of `searchers.find`: finds by a function that is called as `exact` is."""
    return lambda name, *arguments, target_recall: search(*arguments)
