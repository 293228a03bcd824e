"""Every loss of `tfrank.PROXY_LOSSES`, in one process and on one device."""

import inspect
import itertools
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses.proxies import (
    CLASSES,
    DEFAULTS,
    EMBEDDINGS,
    LABELS,
    QUICK,
    every_loss,
    every_loss_and_option,
    slopes,
    value_and_gradients,
)
from tests.reference import proxies as reference
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses import proxies
from tfrank.losses.proxies.arc_face import with_angular_margin
from tfrank.losses.proxies.soft_triple import CentersRegularizer

ROWS = len(LABELS)
one_loss = pytest.mark.parametrize("recipe", DEFAULTS[:1], ids=str)  # For what the base class does.


def layer_of(loss, dim=EMBEDDINGS.shape[1]):
    layer = loss.proxies(seed=1)
    layer.build([None, dim])
    return layer


# Value and gradients are the paper's.


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
@every_loss_and_option
def test_value_is_the_papers(recipe, dtype, tolerance):
    loss = recipe.loss()
    layer = layer_of(loss)
    value = loss(LABELS, layer(EMBEDDINGS.astype(dtype)))
    assert value.dtype == dtype
    expected = recipe.mean(LABELS, EMBEDDINGS, layer.proxies.numpy())
    np.testing.assert_allclose(value, expected, rtol=tolerance)


@every_loss_and_option
def test_gradients_are_the_slopes_of_the_papers_value(recipe):
    loss = recipe.loss()
    layer = layer_of(loss)
    rows = layer.proxies.numpy().astype("float64")
    _, of_embeddings, of_proxies = value_and_gradients(loss, layer, LABELS, EMBEDDINGS)
    expected = slopes(lambda embeddings: recipe.mean(LABELS, embeddings, rows), EMBEDDINGS)
    np.testing.assert_allclose(of_embeddings, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
    expected = slopes(lambda rows: recipe.mean(LABELS, EMBEDDINGS, rows), rows)
    # What reaches a float32 proxy is rounded to float32.
    np.testing.assert_allclose(of_proxies, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("proxies_per_class", [2, 3, 10])
def test_center_regularizer_and_its_gradient_are_the_papers(proxies_per_class):
    rows = np.random.default_rng(3).normal(size=(3 * proxies_per_class, 4))
    regularizer = CentersRegularizer(0.7, proxies_per_class=proxies_per_class)

    def expected(rows):
        return 0.7 * reference.center_distances(rows, proxies_per_class)

    with tf.GradientTape() as tape:
        proxies_now = tf.Variable(rows)
        value = regularizer(proxies_now)
    np.testing.assert_allclose(value, expected(rows), rtol=1e-12)
    np.testing.assert_allclose(tape.gradient(value, proxies_now), slopes(expected, rows), atol=1e-8)


@pytest.mark.parametrize("rows", [np.ones([6, 4]), np.zeros([6, 4]), np.repeat(np.eye(2, 4), 3, axis=0)])
def test_center_regularizer_is_finite_on_equal_and_on_zero_proxies(rows):
    with tf.GradientTape() as tape:
        proxies_now = tf.Variable(rows, dtype=tf.float32)
        value = CentersRegularizer(1.0, proxies_per_class=3)(proxies_now)
    gradient = tape.gradient(value, proxies_now)
    # Equal centres are at distance 0 but for rounding, zero rows are orthogonal to all.
    assert float(value) == pytest.approx(0 if rows.any() else math.sqrt(2) / 2, abs=1e-3)
    np.testing.assert_allclose(gradient, np.zeros_like(rows), atol=1e-3)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.0, math.pi / 2])
def test_arc_face_falls_with_the_angle_from_0_to_pi(margin):
    cosines = tf.cast(tf.cos(tf.linspace(0.0, math.pi, 1001)), tf.float64)
    moved = with_angular_margin(cosines, margin)
    assert np.all(np.diff(moved) < 0)
    assert np.all(moved <= cosines + 1e-12)


# What the value may not depend on.


@every_loss
def test_loss_does_not_depend_on_batch_order_nor_on_that_of_the_training_labels(recipe):
    loss = recipe.loss()
    layer = layer_of(loss)
    value, of_embeddings, of_proxies = value_and_gradients(loss, layer, LABELS, EMBEDDINGS)
    order = np.random.default_rng(0).permutation(ROWS)
    other_loss = recipe.loss([7, 7, 3, 2, 1, -5, 3])
    permuted = value_and_gradients(other_loss, layer, LABELS[order], EMBEDDINGS[order])
    np.testing.assert_allclose(permuted[0], value, rtol=1e-12)
    np.testing.assert_allclose(permuted[1], of_embeddings.numpy()[order], atol=1e-9)
    np.testing.assert_allclose(permuted[2], of_proxies, atol=1e-6)


@every_loss
def test_loss_does_not_depend_on_the_norms_of_embeddings_and_proxies(recipe):
    loss = recipe.loss()
    layer = layer_of(loss)
    value, of_embeddings, of_proxies = value_and_gradients(loss, layer, LABELS, EMBEDDINGS)
    norms = 10.0 ** np.linspace(-4, 12, ROWS)[:, None]
    layer.proxies.assign(4 * layer.proxies.numpy())
    scaled = value_and_gradients(loss, layer, LABELS, EMBEDDINGS * norms)
    np.testing.assert_allclose(scaled[0], value, rtol=1e-12)
    np.testing.assert_allclose(scaled[1] * norms, of_embeddings, atol=1e-9)
    np.testing.assert_allclose(4 * scaled[2], of_proxies, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint64"])
@one_loss
def test_labels_may_be_of_any_integer_dtype_and_of_shape_batch_by_one(recipe, dtype):
    loss, shifted = recipe.loss(), recipe.loss(np.array(CLASSES) + 5)
    cosines = layer_of(loss)(EMBEDDINGS)
    value = loss(LABELS, cosines)
    assert shifted(tf.constant((LABELS + 5).astype(dtype)), cosines) == value
    assert shifted(tf.constant((LABELS + 5).astype(dtype)[:, None]), cosines) == value


@pytest.mark.parametrize("move", [2**24, 2**53, -(2**62), 2**63 - 8])
@one_loss
def test_labels_are_compared_as_integers_however_large(recipe, move):
    """Such neighbours are one number in float32 or in float64."""
    cosines = layer_of(recipe.loss())(EMBEDDINGS)
    value = recipe.loss()(LABELS, cosines)
    assert recipe.loss([label + move for label in CLASSES])(tf.constant(LABELS + move), cosines) == value


# Weights and reduction.


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
@one_loss
def test_sample_weights_weigh_the_mean(recipe, shape):
    weights = np.random.default_rng(0).uniform(size=shape)
    loss = recipe.loss()
    layer = layer_of(loss)
    value = loss(LABELS, layer(EMBEDDINGS), sample_weight=weights)
    by_hand = recipe.mean(LABELS, EMBEDDINGS, layer.proxies.numpy(), weights.ravel())
    np.testing.assert_allclose(value, by_hand, rtol=1e-12)


@one_loss
def test_sample_weights_of_zero_give_zero_loss_and_zero_gradients(recipe):
    loss = recipe.loss()
    result = value_and_gradients(loss, layer_of(loss), LABELS, EMBEDDINGS, np.zeros(ROWS, "int32"))
    assert all(np.all(part == 0) for part in result)


@one_loss
def test_reduction_none_gives_the_weighted_loss_of_each_row(recipe):
    weights = np.arange(ROWS)
    loss = recipe.loss(reduction=None)
    layer = layer_of(loss)
    values = loss(LABELS, layer(EMBEDDINGS), sample_weight=weights)
    by_hand = recipe.oracle(LABELS, EMBEDDINGS, layer.proxies.numpy())
    assert values.shape == [ROWS]
    np.testing.assert_allclose(values, weights * by_hand, rtol=1e-10)


# Degenerate batches and proxies.

NORMAL = np.random.default_rng(1).normal(size=(8, 3))
DEGENERATE = {
    "ordinary": NORMAL,
    "equal rows": np.ones((8, 3)),
    "opposite rows": np.outer([1, -1, -1, 1, 1, -1, -1, 1], [1, 2, 3]),
    "some zero rows": NORMAL * np.array([0, 1, 0, 0, 1, 1, 1, 1])[:, None],
    "only zero rows": np.zeros((8, 3)),
    # A norm of 1e-4 may have a gradient beyond the largest float16.
    "norms of 1e-30 to 1e30": NORMAL * 10.0 ** np.array([-30, -20, -8, -2, 2, 8, 20, 30])[:, None],
}
OF_PROXIES = {
    "as they begin": lambda first, rows: first,
    "equal": lambda first, rows: np.ones_like(first),
    "zero": lambda first, rows: np.zeros_like(first),
    "of the embeddings": lambda first, rows: rows[np.arange(len(first)) % 8],
}
# More than |dL_q/dx| |x| of any loss at its defaults. The steepest is SoftTriple: twice its scale of 20 along
# a cosine, times 1 + 2 / gamma for its sum over the proxies of a class.
STEEPEST = 850


@pytest.mark.parametrize(
    "recipe, dtype",
    [(recipe, tf.float32) if recipe.name in QUICK else slow(recipe, tf.float32) for recipe in DEFAULTS]
    + [pytest.param(recipe, tf.float64, marks=pytest.mark.slow) for recipe in DEFAULTS]
    # Half precisions are cast to float32 before anything else.
    + [(DEFAULTS[-1], dtype) for dtype in (tf.float16, tf.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("batch", DEGENERATE)
def test_value_and_gradients_are_finite_on_degenerate_batches_and_proxies(recipe, batch, dtype):
    rows = tf.cast(np.clip(DEGENERATE[batch], dtype.min, dtype.max), dtype)
    norms = np.linalg.norm(tf.cast(rows, tf.float64), axis=1, keepdims=True)
    for classes, (_, proxies_now) in itertools.product([[5], [5, 6], range(4, 12)], OF_PROXIES.items()):
        loss = recipe.loss(classes)
        layer = layer_of(loss, 3)
        layer.proxies.assign(proxies_now(layer.proxies.numpy(), tf.cast(rows, tf.float32).numpy()))
        labels = np.resize(classes, 8)
        value, *gradients = value_and_gradients(loss, layer, labels, rows)
        of_embeddings, of_proxies = (tf.cast(gradient, tf.float64).numpy() for gradient in gradients)
        assert np.isfinite(value)
        assert np.all(np.isfinite(of_embeddings)) and np.all(np.isfinite(of_proxies))
        assert np.all(np.abs(of_embeddings * norms) <= STEEPEST / 8)
        assert np.all(of_embeddings[norms[:, 0] < 1e-6] == 0)
        # The proxies of Proxy-Anchor are anchors of their own rows, with other classes or without.
        if len(classes) == 1 and recipe.name != "proxy_anchor":
            assert value == 0 and np.all(of_embeddings == 0) and np.all(of_proxies == 0)


@one_loss
def test_a_batch_without_rows_has_no_loss(recipe):
    loss = recipe.loss()
    assert loss(LABELS[:0], layer_of(loss)(EMBEDDINGS[:0])) == 0


# Labels that training does not have, and cosines that are none.


@pytest.mark.parametrize("unknown", [0, 8, -6, 2**24 + 3])
@one_loss
def test_a_label_that_is_not_of_training_is_named(recipe, unknown):
    loss = recipe.loss()
    cosines = layer_of(loss)(EMBEDDINGS)
    labels = np.where(np.arange(ROWS) == 4, unknown, LABELS)
    with pytest.raises(InputError, match=rf"argument `labels`. .*5 labels.*{recipe.name}.*labels={unknown}"):
        loss(labels, cosines)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"labels.*{recipe.name}.*\[{unknown}\]"):
        tf.function(loss)(tf.constant(labels), cosines)


@one_loss
def test_under_xla_a_label_that_is_not_of_training_has_no_loss(recipe):
    loss = recipe.loss()
    cosines = layer_of(loss)(EMBEDDINGS)
    labels = np.where(LABELS == 2, 8, LABELS)
    compiled = tf.function(loss, jit_compile=True)
    known = labels != 8
    expected = loss(LABELS[known], tf.boolean_mask(cosines, known))
    np.testing.assert_allclose(compiled(tf.constant(labels), cosines), expected, rtol=1e-12)


@every_loss
def test_ten_batches_with_other_labels_compile_once(recipe):
    loss, traced = recipe.loss(), []

    @tf.function(jit_compile=True)
    def compiled(labels, cosines):
        traced.append(None)
        return loss(labels, cosines)

    cosines = layer_of(loss)(EMBEDDINGS)
    for seed in range(10):
        labels = tf.constant(np.random.default_rng(seed).choice(CLASSES, ROWS))
        np.testing.assert_allclose(compiled(labels, cosines), loss(labels, cosines), rtol=1e-9)
    assert len(traced) == 1


@pytest.mark.parametrize("shape", [[ROWS, 4], [ROWS], [ROWS, 1, 5]])
def test_cosines_that_are_not_of_the_proxies_are_refused_with_what_to_do(shape):
    with pytest.raises(InputError, match=r"`cosines`.*\[batch, 5\].*add loss\.proxies\(\) as the last layer"):
        losses.get("proxy_nca", labels=CLASSES)(LABELS, np.ones(shape, "float32"))
    with pytest.raises(InputError, match=r"\[batch, 50\]"):
        losses.get("soft_triple", labels=CLASSES)(LABELS, np.ones([ROWS, 5], "float32"))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_embeddings_of_as_many_dimensions_as_there_are_proxies_are_refused(mode):
    loss = losses.get("proxy_nca", labels=CLASSES)
    embeddings = tf.constant(np.full([ROWS, 5], 3.0, "float32"))
    call, error = (
        (loss, InputError) if mode == "eager" else (tf.function(loss), tf.errors.InvalidArgumentError)
    )
    with pytest.raises(
        error, match=r"(?s)cosines.*numbers from -1 to 1: add loss.proxies\(\) as the last layer.*3"
    ):
        call(LABELS, embeddings)


def test_labels_that_are_no_integers_or_of_another_batch_are_refused():
    loss, cosines = losses.get("proxy_nca", labels=CLASSES), np.ones([ROWS, 5], "float32")
    with pytest.raises(InputError, match=r"argument `labels`. Expected integers"):
        loss(LABELS.astype("float32"), cosines)
    with pytest.raises(InputError, match=r"argument `labels`. .*batch of embeddings"):
        loss(LABELS[:-1], cosines)


# Names, configs, arguments.


def test_every_proxy_loss_is_in_proxy_losses_and_has_an_oracle():
    ours = {cls for cls in proxies.ProxyLoss.__subclasses__() if cls.__module__.startswith("tfrank.")}
    assert set(proxies.PROXY_LOSSES.values()) == ours
    assert {*reference.LOSSES, *reference.OF_BATCHES} == set(proxies.PROXY_LOSSES)


@every_loss
def test_name_of_a_loss_is_its_key(recipe):
    assert recipe.loss().name == recipe.name


@every_loss_and_option
def test_config_names_all_arguments_and_makes_the_loss_again(recipe):
    labels = [2**62, 2**24 + 1, -3, 2**24]
    loss = recipe.loss(labels, reduction=None)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    again = keras.saving.deserialize_keras_object(config)
    assert set(loss.get_config()) == set(inspect.signature(type(loss).__init__).parameters) - {"self"}
    assert again.get_config() == loss.get_config()
    assert loss.get_config()["labels"] == sorted(labels)
    cosines = layer_of(loss)(EMBEDDINGS[:4])
    np.testing.assert_array_equal(again(labels, cosines), loss(labels, cosines))


def test_unknown_loss_is_refused_with_the_likely_name():
    with pytest.raises(InputError, match=r"argument `loss`.*Did you mean \"soft_triple\"\?"):
        losses.get("softtriple", labels=CLASSES)


@pytest.mark.parametrize(
    "labels",
    [[1, 2], (2, 1, 1), {1, 2}, iter([1, 2]), np.array([[1], [2]], "uint8"), tf.constant([2, 1])],
    ids=["list", "tuple", "set", "iterator", "column", "tensor"],
)
def test_labels_of_training_may_come_in_any_form(labels):
    loss = losses.get("proxy_nca", labels=labels)
    assert loss.get_config()["labels"] == [1, 2]
    assert loss.num_proxies == 2


@pytest.mark.parametrize(
    "labels", [[], 5, "12", None, [1.0], ["a"], [True], [None], [2**63], [-(2**63) - 1], [[1], [2, 3]]]
)
def test_bad_labels_of_training_are_refused(labels):
    with pytest.raises(InputError, match=r"argument `labels`. .*integer"):
        losses.get("proxy_nca", labels=labels)


@pytest.mark.parametrize("reduction", ["average", "", 1])
@one_loss
def test_other_reductions_are_refused(recipe, reduction):
    with pytest.raises(InputError, match=r"argument `reduction`. Expected one of \['mean', 'sum'"):
        recipe.loss(reduction=reduction)
