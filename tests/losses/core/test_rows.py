"""Rows of similarities scored by a kernel: values and gradients of every loss for any queries and gallery."""

from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.cases import slow
from tests.losses import (
    LABELS,
    ONE_OF_EACH_KIND,
    SOFT_RECIPES,
    embeddings,
    every_loss,
    one_loss_of_each_kind,
    value_and_gradient,
)
from tests.losses.core.cores import (
    ALL,
    CORES,
    assert_gradients_are_slopes,
    assert_same,
    values_and_gradients,
)
from tests.reference.common import mean_over_positives
from tfrank import losses
from tfrank.losses.core import ranks, rows
from tfrank.losses.pnp import Variant, penalty

FIRST_OF_EACH_LOSS = list({recipe.name: recipe for recipe in reversed(SOFT_RECIPES)}.values())


# Other settings of a loss change its formula, and not what it makes of its rows.
FOR_EVERY_SETTING = ["one batch", "gallery holds the batch and more", "labels the gallery lacks"]


def marked(recipe, case):
    few = FIRST_OF_EACH_LOSS if case == "gallery holds the batch and more" else ONE_OF_EACH_KIND
    quick = recipe in few
    return pytest.param(recipe, case, marks=[pytest.mark.slow] * (not quick), id=f"{recipe}-{case}")


@pytest.mark.parametrize(
    "recipe, case",
    [
        marked(recipe, case)
        for recipe in SOFT_RECIPES
        for case in (CORES if recipe in FIRST_OF_EACH_LOSS else FOR_EVERY_SETTING)
    ],
)
def test_values_and_gradients_of_every_loss_are_the_papers(recipe, case):
    """The gradient is the slope of the value, unless the paper defines another."""
    query_labels, queries, gallery_labels, gallery, self_index = core = CORES[case]
    if recipe.normalizes:
        queries, gallery = reference.unit(queries), reference.unit(gallery)
    wanted, wanted_valid = recipe.oracle(query_labels, queries, gallery_labels, gallery, self_index)
    values, valid, *gradients = values_and_gradients(recipe.loss().score, core, recipe)
    np.testing.assert_array_equal(valid, wanted_valid)
    np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-12)
    if recipe.name in reference.DEFINED_SLOPES:
        assert_same(gradients, recipe.gradients(core, np.linspace(1, 2, len(queries))))
    else:
        assert_gradients_are_slopes(recipe.loss().score, core, recipe)


# Penalties of one and of two counts, neither of them a loss's own.
def on_negatives(R, P=None):
    return R**2 / (1 + R)


def on_both(R, P):
    return R * (2 + P) / (1 + P * P + R)


@pytest.mark.parametrize(
    "case, penalty, include_self",
    [
        ("gallery holds the batch and more", on_both, False),
        ("gallery holds the batch and more", on_negatives, False),
        *(slow(case, on_both, True) for case in CORES),
    ],
)
def test_any_penalty_of_ranks_is_differentiated(case, penalty, include_self):
    step = ranks.sigmoid_step(0.1)
    kernel = ranks.penalty_kernel(penalty, step, step if penalty is on_both else None)

    def function(*core):
        return rows.score_rows(kernel, *core, include_self=include_self)

    core = CORES[case]
    wanted = mean_over_positives(penalty, *core, temperature=0.1, include_self=include_self)
    assert_same(values_and_gradients(function, core)[:2], wanted)
    assert_gradients_are_slopes(function, core)


@one_loss_of_each_kind
def test_one_batch_given_as_two_equal_tensors_gives_the_same(recipe):
    """The very same tensor takes a shorter way through the similarity product."""
    batch = embeddings()
    once = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch, ALL), recipe)
    twice = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch.copy(), ALL), recipe)
    assert_same(once[:2], twice[:2])
    # The one tensor gets the gradient of both its places, here under each name.
    assert_same(once[2:], [twice[2] + twice[3]] * 2)


def test_queries_and_a_gallery_of_two_dtypes_are_compared_in_float64():
    """Rows of the identity are the same in both."""
    got, wanted = (
        losses.ContrastiveLoss().score(LABELS, embeddings(), LABELS, gallery, np.full_like(ALL, -1))
        for gallery in (np.eye(3, dtype="float32")[ALL % 3], np.eye(3)[ALL % 3])
    )
    assert_same(got, wanted)


def test_a_constant_gallery_gets_no_gradient_and_leaves_the_query_its_own():
    kernel = ranks.penalty_kernel(on_negatives, ranks.sigmoid_step(0.1))

    def function(constant_gallery):
        return lambda *core: rows.score_rows(kernel, *core, constant_gallery=constant_gallery)

    core = CORES["gallery holds the batch and more"]
    free, constant = (values_and_gradients(function(constant), core) for constant in (False, True))
    assert_same(constant[:3], free[:3])
    assert np.any(free[3]) and not np.any(constant[3])
    # Of one batch only the queries' side is left.
    batch = values_and_gradients(function(True), CORES["one batch"])
    query_labels, queries, gallery_labels, gallery, self_index = CORES["one batch"]
    apart = values_and_gradients(
        function(False), (query_labels, queries, gallery_labels, gallery.copy(), self_index)
    )
    assert_same(batch[:3], apart[:3])


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k"])
def test_absent_rows_are_as_if_they_were_not_in_the_gallery(name):
    """Rows of no query's class, the nearest that there can be: copies of the queries."""
    kernel, *numbers = {
        "smooth_ap": [ranks.penalty_kernel(on_both, ranks.sigmoid_step(0.1), ranks.sigmoid_step(0.1))],
        "recall_at_k": [losses.recall_at_k._kernel((1, 3), False), 0.1, (0.5, 2.0)],
    }[name]
    batch = embeddings()
    present = np.arange(2 * len(LABELS)) % 2 == 0
    gallery_labels = np.where(present, np.repeat(LABELS, 2), 99)
    core = (LABELS, batch, gallery_labels, np.repeat(batch, 2, axis=0), 2 * ALL)
    masked = values_and_gradients(
        lambda *core: rows.score_rows(kernel, *core, *numbers, present=tf.constant(present)), core
    )
    without = values_and_gradients(
        lambda *core: rows.score_rows(kernel, *core, *numbers), (LABELS, batch, LABELS, batch.copy(), ALL)
    )
    assert_same(masked[:3], without[:3])
    np.testing.assert_allclose(masked[3][present], without[3], atol=1e-10)
    assert not np.any(masked[3][~present])


# Slopes of PNP.

# f'(R) as the paper derives it. Of eq. 7 it says log(1 + R) in eq. 6; eq. 7 has 1 more.
SLOPES = {
    "o": lambda R: np.ones_like(R),
    "iu": lambda R: 1 + np.log(1 + R),
    "ib": lambda R: R / (1 + 4 * R),  # eq. 8
    "ds": lambda R: 1 / (1 + R),  # eq. 10
    "dq": lambda R: 4 / (1 + R) ** 5,  # eq. 11
}


@pytest.mark.parametrize("variant", get_args(Variant))
def test_slope_of_pnp_is_the_papers(variant):
    R = tf.constant(np.linspace(0, 50, 101))
    with tf.GradientTape() as tape:
        tape.watch(R)
        value = penalty(variant, alpha=4.0, b=4.0)(R)
    np.testing.assert_allclose(tape.gradient(value, R), SLOPES[variant](R.numpy()), atol=1e-12)
    assert value[0] == 0


@every_loss
def test_a_nan_in_an_embedding_is_a_nan_in_the_loss(recipe):
    batch = embeddings().copy()
    batch[3, 1] = np.nan
    assert np.isnan(recipe.loss()(LABELS, batch))


@one_loss_of_each_kind
def test_a_nan_in_the_gallery_is_a_nan_in_the_loss_of_every_valid_query(recipe):
    gallery = embeddings(seed=1).copy()
    gallery[3, 1] = np.nan
    values, valid = recipe.loss().score(LABELS, embeddings(), LABELS, gallery, np.full_like(ALL, -1))
    assert np.all(np.isnan(values[valid]))


@one_loss_of_each_kind
def test_an_empty_batch_gives_zero(recipe):
    batch = tf.zeros([0, 3])
    value, gradient = value_and_gradient(recipe.loss(), tf.zeros([0], tf.int32), batch)
    assert value == 0 and gradient.shape == [0, 3]
