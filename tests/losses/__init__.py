"""What the tests of losses share: every loss by its settings, and a batch that can tell a wrong one."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import reference
from tfrank import losses

# Settings of a loss that are formulas of their own. A loss without a row is tested at its defaults.
VARIANTS = {"pnp": [{"variant": variant} for variant in ("o", "iu", "ib", "ds", "dq")]}

# Numbers and switches that are tried in the comparisons of value and gradient with the papers.
RANK_OPTIONS = [
    {"temperature": 0.1},
    {"temperature": 1.0},
    {"include_self": True},
    {"include_self": True, "temperature": 0.1},
]
OPTIONS = {"pnp": [*RANK_OPTIONS, {"alpha": 1.5, "b": 0.5}], "smooth_ap": RANK_OPTIONS}


class Recipe(NamedTuple):
    """A loss by its name and settings."""

    name: str
    settings: dict[str, Any]

    def loss(self, **more):
        return losses.get(self.name, **self.settings, **more)

    def oracle(self, *pairs):
        """(loss per query, which queries count) of the paper's formula in plain loops."""
        return reference.LOSSES[self.name](*pairs, **self.settings)

    def __str__(self):
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


RECIPES = [Recipe(name, variant) for name in losses.LOSSES for variant in VARIANTS.get(name, [{}])]
RECIPES_WITH_OPTIONS = RECIPES + [
    Recipe(name, variant | options) for name, variant in RECIPES for options in OPTIONS.get(name, [])
]

every_loss = pytest.mark.parametrize("recipe", RECIPES, ids=str)
every_loss_and_option = pytest.mark.parametrize("recipe", RECIPES_WITH_OPTIONS, ids=str)

# Classes of 4, 3, 2, 1 and 1 rows.
LABELS = np.array([3, 1, 3, 2, 1, 3, 7, 1, 3, -5, 2])


@functools.cache
def embeddings(dtype="float64", seed=0):
    """`[11, 3]` of any norm; rows 2 and 4 of two classes are equal, and rows 0 and 5 of one class."""
    rows = np.random.default_rng(seed).normal(size=(len(LABELS), 3))
    rows[4], rows[5] = rows[2], rows[0]
    return rows.astype(dtype)
