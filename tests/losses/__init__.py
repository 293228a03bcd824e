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

# Classes with categories, and with the coarser ones of two levels: those of `LABELS`, and those that
# `core.cores` has besides.
TREE = {"labels": [1, 2, 3, 7, -5, 11, -1, -13], "categories": [0, 1, 0, 1, 1, 0, 1, 2]}
DEEP_TREE = {
    "labels": TREE["labels"],
    "categories": [[0, 5], [1, 5], [0, 5], [1, 6], [1, 5], [2, 6], [0, 6], [3, 7]],
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
    "map_q": [{"num_bins": 5}, {"num_bins": 50}, {"num_bins": 25, "minimum": 0.0}, {"include_self": True}],
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
        {"k_temperatures": (1.0,) * 5, "count_query": True},
        {"ks": (1, 3), "k_temperatures": (0.5, 2.0), "temperature": 0.1},
        {"ks": (1, 3), "k_temperatures": (4.0, 2.0), "temperature": 0.1},
    ],
    "sup_ap": [
        {"calibration_weight": 0.0},
        {"calibration_weight": 1.0},
        {"include_self": True},
        {"temperature": 0.1, "rho": 10.0, "delta": 0.2},
    ],
    "hierarchical_ap": [
        TREE,
        DEEP_TREE,
        {**TREE, "temperature": 0.1, "rho": 10.0, "delta": 0.2, "alpha": 3.0},
        {**DEEP_TREE, "alpha": 0.0},
    ],
    "triplet": [{"margin": 0.0}, {"margin": 1.5}, {"squared": False}, {"soft": True}],
    "contrastive": [
        *({"margin": 0.3}, {"margin": 2.0}, {"squared": False}),
        *({"average": "nonzero"}, {"average": "nonzero", "squared": False, "margin": 1.5}),
    ],
    "lifted_structure": [{"margin": 0.0}, {"squared": True}],
    "multi_similarity": [{"alpha": 0.5, "beta": 5.0, "threshold": -0.2}, {"epsilon": 0.6}, {"epsilon": 2.1}],
    "circle": [{"margin": 0.0}, {"gamma": 5.0}],
    "sup_con": [{"temperature": 0.5}],
    "tcm": [
        {"positive_margin": 0.5, "negative_margin": -0.3, "positive_weight": 0.5, "negative_weight": 2.0},
        # At exact ties there are pairs on both margins.
        {"positive_margin": 1.0, "negative_margin": 0.0},
    ],
    "margin": [
        {"margin": 0.0, "boundary": 0.7},
        {"average": "nonzero", "boundary": 0.9},
        {"margin": 0.5, "cutoff": 1.1, "nonzero_cutoff": 1.9, "seed": 2**40},
    ],
    "histogram": [{"num_bins": 2}, {"num_bins": 8}],
}

# Settings under which many pairs have gradient, for comparisons of gradients. A loss without a row has its
# defaults.
SOFT = {
    "pnp": [{"variant": "ib", "temperature": 0.1, "include_self": True}],
    "smooth_ap": [{"temperature": 0.1}, {"temperature": 0.1, "include_self": True}],
    "map_q": [{"num_bins": 5}, {"num_bins": 7, "tie_aware": True, "include_self": True}],
    "fast_ap": [{"num_bins": 3}],
    "rll": [
        {"negative_temperature": 2.0, "positive_temperature": -1.0},
        {"negative_temperature": 2.0, "positive_temperature": 3.0, "constant_gallery": False},
    ],
    "blackbox_ap": [{"interpolation": 0.5}],
    # Of three positives and more the first sum is past k = 1, where it is cut off.
    "recall_at_k": [{"ks": (1, 3), "k_temperatures": (4.0, 2.0), "temperature": 0.1}],
    "sup_ap": [
        {"temperature": 0.1, "rho": 10.0, "delta": 0.2},
        {"temperature": 0.1, "rho": 10.0, "delta": 0.2, "include_self": True},
    ],
    "hierarchical_ap": [
        {"temperature": 0.1, "rho": 10.0, "delta": 0.2},
        {**TREE, "temperature": 0.1, "rho": 10.0, "delta": 0.2, "alpha": 2.0},
        {**DEEP_TREE, "temperature": 0.1},
    ],
    "triplet": [
        *({"margin": 1.0, "mining": mining} for mining in ("semi_hard", "hard", "all")),
        {"margin": 1.0, "mining": "hard", "hardest": 4},
        *({"squared": False, "soft": True, "mining": mining} for mining in ("semi_hard", "hard", "all")),
        {"squared": False, "margin": 0.7, "mining": "all"},
        *({"margin": 0.7, "average": "nonzero", "mining": mining} for mining in ("semi_hard", "hard", "all")),
    ],
    "contrastive": [
        {"margin": 1.5},
        {"margin": 1.5, "squared": False},
        {"margin": 1.5, "squared": False, "average": "nonzero"},
    ],
    "n_pairs": [{"normalize": False}, {"normalize": True}],
    "lifted_structure": [{"normalize": False}, {"normalize": True, "squared": True}],
    "multi_similarity": [{"alpha": 2.0, "beta": 3.0, "threshold": 0.0, "epsilon": 0.5}],
    "circle": [{"gamma": 2.0}],
    "margin": [
        {"sampled": False, "margin": 0.8, "nonzero_cutoff": 1.9},
        {"sampled": True, "margin": 0.8, "nonzero_cutoff": 1.9},
    ],
    "histogram": [{"num_bins": 7}],
}

# One loss of each kind, for what the base class and `core` do for all: of pairs, of soft ranks, of bins, and
# two of whole matrices, in which queries share a histogram or rows are not normalised.
KINDS = ("contrastive", "smooth_ap", "map_q", "histogram", "lifted_structure")
# And one that has weights of its own and reads the step, for what is done around a loss.
KINDS_AND_STATE = (*KINDS, "margin")

# Settings that change the gradient only: the papers' values know nothing of them.
OF_THE_GRADIENT = {"constant_gallery"}


class Recipe(NamedTuple):
    """A loss by its name and settings."""

    name: str
    settings: dict[str, Any]

    def loss(self, **more):
        """At step 0, for a loss that draws by the step."""
        loss = losses.get(self.name, **self.settings, **more)
        loss.iteration = tf.Variable(0, dtype=tf.int64)
        return loss

    def normalized(self):
        """The loss with normalisation, if it leaves it out by default."""
        return self if self.normalizes else Recipe(self.name, {**self.settings, "normalize": True})

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

    def gradients(self, pairs, weights):
        """The gradients of the weighted sum of the losses by queries and gallery, as the paper defines them.

        Only of losses whose gradient is not the slope of their value. A gallery that is the queries, the very
        same array, is one batch: both gradients are that of the batch.
        """
        _, queries, _, gallery, _ = pairs
        slopes = weights[:, None] * reference.DEFINED_SLOPES[self.name](*pairs, **self.of_the_value())
        constant = self.settings.get("constant_gallery", self.name == "rll")
        of_queries = slopes @ reference.unit(gallery)
        of_gallery = (0 if constant else 1) * slopes.T @ reference.unit(queries)
        if gallery is queries:
            of_queries = of_gallery = of_queries + of_gallery
        return _of_rows(of_queries, queries), _of_rows(of_gallery, gallery)

    def __str__(self):
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


def slow_but_kinds(recipe):
    """Losses of one kind share what differs between the cases, so that only CI tests all of them."""
    return () if recipe.name in KINDS else pytest.mark.slow


RECIPES = [Recipe(name, variant) for name in losses.LOSSES for variant in VARIANTS.get(name, [{}])]
RECIPES_WITH_OPTIONS = RECIPES + [
    Recipe(name, variant | options) for name, variant in RECIPES for options in OPTIONS.get(name, [])
]

SOFT_RECIPES = [Recipe(name, soft) for name in losses.LOSSES for soft in SOFT.get(name, [{}])]

ONE_OF_EACH_KIND = [next(recipe for recipe in SOFT_RECIPES if recipe.name == name) for name in KINDS]

every_loss = pytest.mark.parametrize("recipe", RECIPES, ids=str)
every_soft_loss = pytest.mark.parametrize("recipe", SOFT_RECIPES, ids=str)
one_loss_of_each_kind = pytest.mark.parametrize(
    "recipe", [Recipe(name, VARIANTS.get(name, [{}])[0]) for name in KINDS], ids=str
)
every_loss_and_option = pytest.mark.parametrize("recipe", RECIPES_WITH_OPTIONS, ids=str)

# Classes of 4, 3, 2, 1 and 1 rows.
LABELS = np.array([3, 1, 3, 2, 1, 3, 7, 1, 3, -5, 2])


@functools.cache
def embeddings(dtype="float64", seed=0):
    """`[11, 3]` of any norm, without ties, at which some losses jump: there rounding would decide.

    `test_value_is_the_papers_at_exact_ties` has ties that no rounding can break.
    """
    return np.random.default_rng(seed).normal(size=(len(LABELS), 3)).astype(dtype)


def value_and_gradient(loss, labels, rows, sample_weight=None):
    rows = tf.convert_to_tensor(rows)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = loss(labels, rows, sample_weight)
    return value, tape.gradient(value, rows)


def _of_rows(gradient, rows):
    """The gradient of rows from that of their unit rows."""
    unit = reference.unit(rows)
    along = np.sum(gradient * unit, axis=1, keepdims=True)
    return (gradient - along * unit) / np.linalg.norm(rows, axis=1, keepdims=True)
