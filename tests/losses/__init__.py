"""What the tests of losses share: every loss by its settings, and a batch that can tell a wrong one."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tfrank import losses

# Settings of a loss that are formulas of their own. A loss without a row is tested at its defaults.
VARIANTS = {
    "pnp": [{"variant": variant} for variant in ("o", "iu", "ib", "ds", "dq")],
    "map_q": [{"tie_aware": False}, {"tie_aware": True}],
    "rll": [{"constant_gallery": True}, {"constant_gallery": False}],
    "triplet": [
        *({"mining": mining} for mining in ("semi_hard", "hard", "all")),
        {"mining": "hard", "hardest": 4},
    ],
    "n_pairs": [{"normalize": False}, {"normalize": True}],
    "lifted_structure": [{"normalize": False}, {"normalize": True}],
    "margin": [{"sampled": False}, {"sampled": True}],
}

# Numbers and switches that are tried in the comparisons of value and gradient with the papers.
RANK_OPTIONS = [
    {"temperature": 0.1},
    {"temperature": 1.0},
    {"include_self": True},
    {"include_self": True, "temperature": 0.1},
]
OPTIONS = {
    "pnp": [*RANK_OPTIONS, {"alpha": 1.5, "b": 0.5}],
    "smooth_ap": RANK_OPTIONS,
    "map_q": [{"num_bins": 5}, {"num_bins": 50}, {"include_self": True}],
    "fast_ap": [{"num_bins": 1}, {"num_bins": 3}, {"num_bins": 37}],
    "rll": [
        {"negative_temperature": 0.0},
        {"negative_temperature": 20.0},
        {"positive_temperature": -10.0},
        {"positive_temperature": 10.0},
        {"negative_weight": 0.2},
        {"margin": 1.2},
    ],
    "blackbox_ap": [{"interpolation": 0.5}, {"margin": 0.0}],
    "recall_at_k": [
        {"ks": (1, 3), "k_temperatures": (0.5, 2.0), "temperature": 0.1},
        {"ks": (1, 3), "k_temperatures": (4.0, 2.0), "temperature": 0.1},
    ],
    "sup_ap": [
        {"calibration_weight": 0.0},
        {"calibration_weight": 1.0},
        {"include_self": True},
        {"temperature": 0.1, "rho": 10.0, "delta": 0.2},
    ],
    "triplet": [{"margin": 0.0}, {"margin": 1.5}],
    "contrastive": [{"margin": 0.3}, {"margin": 2.0}],
    "lifted_structure": [{"margin": 0.0}, {"squared": True}],
    "multi_similarity": [{"alpha": 0.5, "beta": 5.0, "threshold": -0.2}, {"epsilon": 0.6}, {"epsilon": 2.1}],
    "circle": [{"margin": 0.0}, {"gamma": 5.0}],
    "margin": [
        {"margin": 0.0, "boundary": 0.7},
        {"margin": 0.5, "cutoff": 1.1, "nonzero_cutoff": 1.9, "seed": 2**40},
    ],
    "histogram": [{"num_bins": 2}, {"num_bins": 8}],
}

# Settings that change the gradient only: the papers' values know nothing of them.
OF_THE_GRADIENT = {"constant_gallery"}

# Losses that jump where two similarities are equal, or whose slope does at distance 0: there rounding
# would decide. `test_value_is_the_papers_at_exact_ties` has ties that no rounding can break.
JUMPS_AT_TIES = {"blackbox_ap", "rll", "sup_ap", "triplet", "contrastive", "lifted_structure", "margin"}


class Recipe(NamedTuple):
    """A loss by its name and settings."""

    name: str
    settings: dict[str, Any]

    def loss(self, **more):
        """At step 0, for a loss that draws by the step."""
        loss = losses.get(self.name, **self.settings, **more)
        loss.iteration = 0
        return loss

    @property
    def normalizes(self):
        """Whether the loss normalises; else its formula, and its core, have embeddings as they are."""
        return self.loss().normalize

    def of_the_value(self):
        """The settings that the papers' formulas have."""
        return {key: value for key, value in self.settings.items() if key not in OF_THE_GRADIENT}

    def oracle(self, *pairs):
        """(loss per query, which queries are valid) of the paper's formula in plain loops."""
        return reference.LOSSES[self.name](*pairs, **self.of_the_value())

    def embeddings(self, dtype="float64", seed=0):
        """The batch, with ties if the loss is continuous there."""
        return embeddings(dtype, seed, ties=self.name not in JUMPS_AT_TIES)

    def __str__(self):
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


RECIPES = [Recipe(name, variant) for name in losses.LOSSES for variant in VARIANTS.get(name, [{}])]
RECIPES_WITH_OPTIONS = RECIPES + [
    Recipe(name, variant | options) for name, variant in RECIPES for options in OPTIONS.get(name, [])
]

every_loss = pytest.mark.parametrize("recipe", RECIPES, ids=str)
every_loss_that_normalizes = pytest.mark.parametrize(
    "recipe", [recipe for recipe in RECIPES if recipe.normalizes], ids=str
)
every_loss_and_option = pytest.mark.parametrize("recipe", RECIPES_WITH_OPTIONS, ids=str)

# Classes of 4, 3, 2, 1 and 1 rows.
LABELS = np.array([3, 1, 3, 2, 1, 3, 7, 1, 3, -5, 2])


@functools.cache
def embeddings(dtype="float64", seed=0, ties=True):
    """`[11, 3]` of any norm; with ties rows 2 and 4 of two classes are equal, and 0 and 5 of one class."""
    rows = np.random.default_rng(seed).normal(size=(len(LABELS), 3))
    if ties:
        rows[4], rows[5] = rows[2], rows[0]
    return rows.astype(dtype)


def value_and_gradient(loss, labels, rows, sample_weight=None):
    rows = tf.convert_to_tensor(rows)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = loss(labels, rows, sample_weight)
    return value, tape.gradient(value, rows)
