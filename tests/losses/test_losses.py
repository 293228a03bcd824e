"""Every loss of `tfrank.LOSSES`, in one process and on one device."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference
from tests.losses import (
    KINDS,
    LABELS,
    RECIPES,
    RECIPES_WITH_OPTIONS,
    Recipe,
    embeddings,
    every_loss,
    one_loss_of_each_kind,
    slow_but_kinds,
    value_and_gradient,
)
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.core.loss_around import LossAround

ROWS = len(LABELS)


def expected(recipe, labels, rows, weights=None):
    return reference.mean(*recipe.oracle(*reference.one_batch(labels, rows)), weights)


# Value and gradient are the paper's.


@pytest.mark.parametrize(
    "recipe, dtype, tolerance",
    [(recipe, "float64", 1e-12) for recipe in RECIPES_WITH_OPTIONS]
    + [pytest.param(recipe, "float32", 1e-4, marks=slow_but_kinds(recipe)) for recipe in RECIPES],
    ids=str,
)
def test_value_is_the_papers(recipe, dtype, tolerance):
    """With classes of unequal size and lone queries."""
    rows = embeddings(dtype)
    value = recipe.loss()(LABELS, rows)
    assert value.dtype == dtype
    np.testing.assert_allclose(value, expected(recipe, LABELS, rows), rtol=tolerance)


@pytest.mark.parametrize(
    "recipe, dtype, tolerance",
    [(recipe, "float64", 1e-12) for recipe in RECIPES_WITH_OPTIONS]
    + [pytest.param(recipe, "float32", 1e-5, marks=slow_but_kinds(recipe)) for recipe in RECIPES],
    ids=str,
)
def test_value_is_the_papers_at_exact_ties(recipe, dtype, tolerance):
    """Rows along the axes: every similarity is exactly -1, 0 or 1."""
    rows = np.eye(3, dtype=dtype)[[0, 1, 1, 2, 0, 0, 2, 1, 2, 0, 0]]
    rows *= np.array([1, 2, -1, 1, 4, 1, 1, 1, 2, -1, 1], dtype)[:, None]
    value = recipe.loss()(LABELS, rows)
    np.testing.assert_allclose(value, expected(recipe, LABELS, rows), rtol=tolerance)


@every_loss
@settings(max_examples=10, derandomize=True, deadline=None, database=None)
@given(labels=st.lists(st.integers(-2, 4), min_size=ROWS, max_size=ROWS))
def test_value_is_the_papers_for_any_labels(recipe, labels):
    rows = embeddings()
    np.testing.assert_allclose(recipe.loss()(labels, rows), expected(recipe, labels, rows), atol=1e-12)


DEFINED = [recipe for recipe in RECIPES_WITH_OPTIONS if recipe.name in reference.DEFINED_SLOPES]
TRUE_SLOPES = [recipe for recipe in RECIPES_WITH_OPTIONS if recipe.name not in reference.DEFINED_SLOPES]


@pytest.mark.parametrize("recipe", TRUE_SLOPES, ids=str)
def test_gradient_is_the_slope_of_the_papers_value(recipe):
    """Central differences of the oracle, in float64."""
    rows, step = embeddings(), 1e-6
    slopes = np.zeros_like(rows)
    for place in np.ndindex(slopes.shape):
        moved = np.zeros_like(slopes)
        moved[place] = step
        above, below = (expected(recipe, LABELS, rows + move) for move in (moved, -moved))
        slopes[place] = (above - below) / (2 * step)
    _, gradient = value_and_gradient(recipe.loss(), LABELS, rows)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7 * np.abs(slopes).max())


@pytest.mark.parametrize("recipe", DEFINED, ids=str)
def test_gradient_is_the_papers_where_that_is_not_the_slope(recipe):
    """RLL's weights are constants to the gradient, and a piecewise constant loss has no slope."""
    rows = embeddings()
    pairs = reference.one_batch(LABELS, rows)
    valid = recipe.oracle(*pairs)[1]
    by_hand, _ = recipe.gradients(pairs, valid / valid.sum())
    _, gradient = value_and_gradient(recipe.loss(), LABELS, rows)
    assert np.any(by_hand)
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-10, atol=1e-12)


# What the value may not depend on.


# Draws go by the places in the batch.
IN_ANY_ORDER = [recipe for recipe in RECIPES if not recipe.settings.get("sampled")]


@pytest.mark.parametrize("recipe", IN_ANY_ORDER, ids=str)
def test_loss_does_not_depend_on_batch_order(recipe):
    rows = embeddings()
    value, gradient = value_and_gradient(recipe.loss(), LABELS, rows)
    order = np.random.default_rng(0).permutation(ROWS)
    permuted = value_and_gradient(recipe.loss(), LABELS[order], rows[order])
    np.testing.assert_allclose(permuted[0], value, rtol=1e-12)
    np.testing.assert_allclose(permuted[1], gradient.numpy()[order], atol=1e-9)


@one_loss_of_each_kind
def test_loss_does_not_depend_on_the_norms_of_the_embeddings(recipe):
    recipe = recipe.normalized()
    rows = embeddings()
    value, gradient = value_and_gradient(recipe.loss(), LABELS, rows)
    norms = 10.0 ** np.linspace(-4, 12, ROWS)[:, None]
    scaled = value_and_gradient(recipe.loss(), LABELS, rows * norms)
    np.testing.assert_allclose(scaled[0], value, rtol=1e-12)
    np.testing.assert_allclose(scaled[1] * norms, gradient, atol=1e-9)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"])
def test_labels_may_be_of_any_integer_dtype_and_of_shape_batch_by_one(dtype):
    recipe = Recipe("contrastive", {})
    labels = LABELS - LABELS.min() if dtype.startswith("u") else LABELS
    value = recipe.loss()(tf.constant(LABELS), embeddings())
    assert recipe.loss()(tf.constant(labels.astype(dtype)), embeddings()) == value
    assert recipe.loss()(tf.constant(labels.astype(dtype)[:, None]), embeddings()) == value


@pytest.mark.parametrize(
    "labels",
    [2**24 + LABELS, 2**53 + LABELS, -(2**62) + LABELS, 2**40 * LABELS],
    ids=["beyond float32", "beyond float64", "negative", "same lower bits"],
)
@one_loss_of_each_kind
def test_labels_are_compared_as_integers_however_large(recipe, labels):
    value = recipe.loss()(LABELS, embeddings())
    assert recipe.loss()(tf.constant(labels), embeddings()) == value
    assert value > 0


# Weights and reduction.


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
@one_loss_of_each_kind
def test_sample_weights_weigh_the_mean_over_the_valid_queries(recipe, shape):
    weights = np.random.default_rng(0).uniform(size=shape)
    value = recipe.loss()(LABELS, embeddings(), sample_weight=weights)
    by_hand = expected(recipe, LABELS, embeddings(), weights.ravel())
    np.testing.assert_allclose(value, by_hand, rtol=1e-12)


@one_loss_of_each_kind
def test_sample_weights_of_zero_give_zero_loss_and_zero_gradient(recipe):
    result = value_and_gradient(recipe.loss(), LABELS, embeddings(), np.zeros(ROWS, "int32"))
    assert all(np.all(part == 0) for part in result)


@one_loss_of_each_kind
def test_reduction_none_gives_the_weighted_loss_of_each_query(recipe):
    weights = np.arange(ROWS)
    values = recipe.loss(reduction=None)(LABELS, embeddings(), sample_weight=weights)
    losses_by_hand, valid = recipe.oracle(*reference.one_batch(LABELS, embeddings()))
    assert values.shape == [ROWS]
    np.testing.assert_allclose(values, weights * losses_by_hand * valid, rtol=1e-10)


def test_sums_are_over_all_rows_and_sum_over_batch_size_divides_by_their_number():
    weights = np.arange(ROWS)
    recipe = Recipe("contrastive", {})
    each = recipe.loss(reduction="none")(LABELS, embeddings(), sample_weight=weights)
    total, average = (
        recipe.loss(reduction=reduction)(LABELS, embeddings(), sample_weight=weights)
        for reduction in ("sum", "sum_over_batch_size")
    )
    np.testing.assert_allclose(total, np.sum(each), rtol=1e-12)
    np.testing.assert_allclose(average, np.sum(each) / ROWS, rtol=1e-12)


# Degenerate batches.

NORMAL = np.random.default_rng(1).normal(size=(8, 3))
PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]
DEGENERATE = {
    "one class": ([5] * 8, NORMAL),
    "all labels distinct": (range(8), NORMAL),
    "one row": ([5], NORMAL[:1]),
    "equal rows": (PAIRS, np.ones((8, 3))),
    "opposite rows": (PAIRS, np.outer([1, -1, -1, 1, 1, -1, -1, 1], [1, 2, 3])),
    "some zero rows": (PAIRS, NORMAL * np.array([0, 1, 0, 0, 1, 1, 1, 1])[:, None]),
    "only zero rows": (PAIRS, np.zeros((8, 3))),
    "norms of 1e-30": (PAIRS, NORMAL * 1e-30),
    "norms of 1e30": (PAIRS, NORMAL * 1e30),
    "norms of 1e-30 to 1e30": (PAIRS, NORMAL * 10.0 ** np.linspace(-30, 30, 8)[:, None]),
}
# Dot products of such rows overflow where a loss takes them as they are.
TOO_LARGE_AS_THEY_ARE = {"norms of 1e30", "norms of 1e-30 to 1e30"}
DEGENERATE_CASES = [
    (recipe, batch)
    for recipe in RECIPES
    for batch in DEGENERATE
    if recipe.normalizes or batch not in TOO_LARGE_AS_THEY_ARE
]
# A loss of pairs keeps the negatives of rows without a positive.
WITHOUT_LOSS = {"all labels distinct": {"tcm"}, "one row": set()}

# More than the sum over j of |dL_q/ds_j| of any loss at its defaults. The steepest are sums of sigmoids of
# slope 25 (PNP-Dq: 2 x 25 x 4) and the line of SupAP (2 x 100).
STEEPEST = 250


@pytest.mark.parametrize(
    "recipe, batch, dtype",
    [(*case, tf.float32) for case in DEGENERATE_CASES]
    + [(*case, tf.float64) for case in DEGENERATE_CASES if case[0].name in KINDS]
    # Half precisions are cast to float32 before anything else.
    + [
        (Recipe("contrastive", {}), batch, dtype)
        for batch in DEGENERATE
        for dtype in (tf.float16, tf.bfloat16)
    ],
    ids=str,
)
def test_value_and_gradient_are_finite_on_degenerate_batches(recipe, batch, dtype):
    labels, rows = DEGENERATE[batch]
    rows = tf.cast(np.clip(rows, dtype.min, dtype.max), dtype)
    value, gradient = value_and_gradient(recipe.loss(), tf.constant(labels), rows)
    assert np.isfinite(value) and value >= 0
    gradient = tf.cast(gradient, tf.float64).numpy()
    assert np.all(np.isfinite(gradient))
    # Every similarity of unit rows moves by at most 1 with each of its rows, and a row is the query of
    # 1 in `batch` losses of the mean and in the gallery of all.
    norms = np.linalg.norm(tf.cast(rows, tf.float64), axis=1, keepdims=True)
    steepest = 2 * STEEPEST * len(rows)
    if recipe.normalizes:
        assert np.all(np.abs(gradient * norms) <= steepest)
        assert np.all(gradient[norms[:, 0] < 1e-6] == 0)
    else:  # A distance moves by at most 1 with its rows, a dot product by at most the other row's norm.
        assert np.all(np.abs(gradient) <= steepest * max(norms.max(), 1))
    if batch in WITHOUT_LOSS and recipe.name not in WITHOUT_LOSS[batch]:
        assert value == 0 and np.all(gradient == 0)


@one_loss_of_each_kind
def test_a_zero_row_is_to_the_others_like_an_orthogonal_row(recipe):
    """It has similarity 0 to everything, as a row in a dimension of its own has."""
    recipe = recipe.normalized()
    zero = np.pad(embeddings(), [(0, 0), (0, 1)])
    zero[1] = 0
    orthogonal = zero.copy()
    orthogonal[1, 3] = 1
    value, gradient = value_and_gradient(recipe.loss(), LABELS, zero)
    expected_value, expected_gradient = value_and_gradient(recipe.loss(), LABELS, orthogonal)
    np.testing.assert_allclose(value, expected_value, rtol=1e-12)
    others = np.delete(np.arange(ROWS), 1)
    np.testing.assert_allclose(gradient.numpy()[others, :3], expected_gradient.numpy()[others, :3], atol=1e-9)


# Names and configs.


def test_every_ranking_loss_is_in_losses_and_has_an_oracle():
    def subclasses(cls):
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    ours = {cls for cls in subclasses(losses.RankingLoss) if cls.__module__.startswith("tfrank.")}
    # Those around other losses have no name of their own.
    assert set(losses.LOSSES.values()) == ours - {losses.RankingLoss, *subclasses(LossAround)}
    assert set(reference.LOSSES) == set(losses.LOSSES)


@every_loss
def test_name_of_a_loss_is_its_key(recipe):
    assert recipe.loss().name == recipe.name


@every_loss
def test_get_config_names_all_constructor_arguments(recipe):
    arguments = set(inspect.signature(type(recipe.loss()).__init__).parameters) - {"self"}
    assert set(recipe.loss().get_config()) == arguments


def elsewhere(value):
    """A number or switch, or numbers, away from their default."""
    if isinstance(value, tuple):
        return tuple(map(elsewhere, value))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 4
    return value * (1.5 if value >= 0 else 0.5) + 0.1


@every_loss
def test_revived_loss_gives_the_same_value(recipe):
    """With every number and switch away from its default, through JSON."""
    config = {
        key: elsewhere(value) if isinstance(value, bool | int | float | tuple) else value
        for key, value in recipe.loss().get_config().items()
    }
    # Needs labels; tested in test_learned_boundary.
    config |= {"learn_boundary": False} if "learn_boundary" in config else {}
    loss = type(recipe.loss()).from_config(config)
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert type(revived) is type(loss)
    assert revived.get_config() == config
    # Some of them change with the step.
    revived.iteration = loss.iteration = tf.Variable(3)
    assert revived(LABELS, embeddings()) == loss(LABELS, embeddings())


def test_unknown_loss_is_refused_with_the_likely_name():
    with pytest.raises(InputError, match=r"argument `loss`.*'pnp'.*Did you mean \"smooth_ap\"\?"):
        losses.get("smoothap")
