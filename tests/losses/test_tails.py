"""Losses and gradients that are nearly 0 are right relative to themselves, in float32 as in float64."""

import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.cases import slow
from tests.losses import RECIPES, Recipe, value_and_gradient
from tfrank.losses.core.ranks import sigmoid_step
from tfrank.losses.core.tails import x_minus_log1p

# Rounding of a similarity moves it by 1e-7, which is 1e-5 of a temperature of 0.01.
TOLERANCE = 3e-4

# Settings under which the loss of well separated classes is below 1e-5.
SEPARATED = [
    *(Recipe("pnp", {"variant": variant}) for variant in ("o", "iu", "ds", "dq")),
    Recipe("pnp", {"variant": "ib", "temperature": 0.03}),
    Recipe("smooth_ap", {}),
    Recipe("recall_at_k", {"ks": (16,), "k_temperatures": (1.0,)}),
    Recipe("sup_ap", {"calibration_weight": 0.0}),
    Recipe("hierarchical_ap", {}),
    Recipe("n_pairs", {}),
    Recipe("multi_similarity", {"alpha": 50.0, "beta": 50.0, "epsilon": 2.1}),
    Recipe("circle", {}),
    Recipe("sup_con", {"temperature": 0.03}),
]
LABELS = np.arange(12) // 2


# By a sigmoid of temperature 0.01 differences of 0.9 are below the least float32.
OF_RANKS = {"pnp", "smooth_ap", "recall_at_k", "sup_ap", "hierarchical_ap"}


def rows(norms=1.0, common=0.0):
    """`[12, 7]` float32: two rows near each of six axes, which all have a `common` part.

    Similarities are about 0.95 within a class, and c^2 / (1 + c^2) of two classes.
    """
    axes = np.pad(np.eye(6)[LABELS], [(0, 0), (0, 1)], constant_values=common)
    return (norms * (axes + np.random.default_rng(0).normal(scale=0.08, size=axes.shape))).astype("float32")


def assert_as_in_float64(loss, labels, batch):
    """Value and gradient of a float32 batch; returns the value."""
    value, gradient = value_and_gradient(loss, labels, batch)
    exact, exact_gradient = value_and_gradient(loss, labels, batch.astype("float64"))
    np.testing.assert_allclose(value, exact, rtol=TOLERANCE)
    # Squares of smaller numbers would be 0 in float32.
    assert np.max(np.abs(exact_gradient)) > 1e-30
    error = np.linalg.norm(gradient.numpy().astype("float64") - exact_gradient)
    assert error <= 10 * TOLERANCE * np.linalg.norm(exact_gradient)
    return exact.numpy()


QUICK = {"smooth_ap", "recall_at_k", "sup_con", "multi_similarity"}
SOME = [one if one.name in QUICK or one.settings.get("variant") == "ib" else slow(one) for one in SEPARATED]


@pytest.mark.parametrize("recipe", SOME, ids=str)
def test_the_loss_of_separated_classes_is_small_and_right(recipe):
    # Dot products of rows of norm 5, for the loss that takes them as they are.
    batch = rows(5.0 if recipe.name == "n_pairs" else 1.0, 1.2 if recipe.name in OF_RANKS else 0.0)
    exact = assert_as_in_float64(recipe.loss(), LABELS, batch)
    assert 0 < exact < 1e-5


@pytest.mark.parametrize(
    "recipe",
    [one if one.name == "smooth_ap" else slow(one) for one in SEPARATED if one.name in OF_RANKS],
    ids=str,
)
def test_the_gradient_is_right_where_all_negatives_are_far_before_all_positives(recipe):
    """Each row has its only positive on the other side, and half of the negatives on its own."""
    random = np.random.default_rng(0)
    batch = np.concatenate([np.ones([12, 4]), 0.4 * random.normal(size=[12, 6])], axis=1).astype("float32")
    batch[6:, 0] *= -1
    assert_as_in_float64(recipe.loss(), np.tile(np.arange(6), 2), batch)


@pytest.mark.parametrize(
    "recipe", [one if one.name in ("contrastive", "circle") else slow(one) for one in RECIPES], ids=str
)
def test_every_loss_is_as_exact_in_float32_as_its_similarities(recipe):
    """Where classes mix, by noise as large as the distance of their centres."""
    random = np.random.default_rng(3)
    batch = (np.eye(6)[LABELS] + 0.5 * random.normal(size=(12, 6))).astype("float32")
    assert_as_in_float64(recipe.loss(), LABELS, batch)


def of_proxies(make):
    """A function of cosines whose own class has 0.9, and the loss."""
    loss = make(labels=range(6))
    per_class = getattr(loss, "proxies_per_class", 1)
    random = np.random.default_rng(0)
    cosines = random.uniform(-0.3, 0.2, [12, 6, per_class])
    cosines[np.arange(12), LABELS] = random.uniform(0.85, 0.95, [12, per_class])
    return loss, cosines.reshape(12, -1).astype("float32")


@pytest.mark.parametrize(
    "make",
    [
        tfrank.ArcFaceLoss,
        tfrank.CosFaceLoss,
        lambda labels: tfrank.NormalizedSoftmaxLoss(labels, temperature=0.02),
        lambda labels: tfrank.ProxyNCAPlusPlusLoss(labels, temperature=0.03),
        lambda labels: tfrank.SoftTripleLoss(labels, scale=64.0),
        lambda labels: tfrank.ProxyAnchorLoss(labels, alpha=64.0, delta=0.0),
    ],
    ids=["arc_face", "cos_face", "normalized_softmax", "proxy_nca_pp", "soft_triple", "proxy_anchor"],
)
def test_the_loss_of_rows_at_their_proxies_is_small_and_right(make):
    loss, cosines = of_proxies(make)
    if isinstance(loss, tfrank.ProxyAnchorLoss):
        cosines = np.where(cosines > 0.5, cosines, cosines - 0.6).astype("float32")
    exact = assert_as_in_float64(loss, LABELS, cosines)
    assert 0 < exact < 1e-5


@pytest.mark.parametrize("temperature", [0.02, 0.05])
def test_the_loss_of_many_labels_is_small_and_right(temperature):
    tags = np.eye(6, dtype="float32")[LABELS]
    exact = assert_as_in_float64(tfrank.MultiLabelSupConLoss(temperature), tags, rows())
    assert 0 < exact < 1e-5


@pytest.mark.parametrize("compiled", [True, False])
def test_the_sigmoid_keeps_its_tails_in_value_and_slope(compiled):
    x = np.linspace(-85, 85, 3401).astype("float32").astype("float64")
    step = tf.function(lambda x: sigmoid_step(tf.constant(1.0))(x), jit_compile=compiled)
    value, slope = step(tf.constant(x, tf.float32))
    np.testing.assert_allclose(value, 1 / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_allclose(slope, np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2, rtol=1e-6)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 5e-7), ("float64", 1e-15)])
def test_x_minus_log1p_is_right_however_small_x_is_with_its_slope(dtype, tolerance):
    x = np.concatenate([np.geomspace(1e-15, 0.03, 50), [0.499, 0.5, 0.501, 1, 30, 1e6]]).astype(dtype)
    exact = x.astype("float64")
    series = exact**2 * sum((-exact) ** k / (k + 2) for k in range(12))
    wanted = np.where(exact < 0.04, series, exact - np.log1p(exact))
    variable = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(variable)
        value = x_minus_log1p(variable)
    np.testing.assert_allclose(value, wanted, rtol=tolerance)
    np.testing.assert_allclose(tape.gradient(value, variable), exact / (1 + exact), rtol=tolerance)
