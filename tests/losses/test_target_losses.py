"""Losses of embeddings and targets: by plain loops. Replicas: `replica_cases.py`."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import value_and_gradient
from tests.losses.proxies import slopes
from tfrank import losses
from tfrank.common.checks import InputError

RNG = np.random.default_rng(0)
ROWS, TARGETS = RNG.normal(size=[7, 3]), RNG.normal(size=[7, 3])
WIDER = RNG.normal(size=[7, 5])
KINDS = {
    "relational": (losses.RelationalLoss, reference.relational),
    "regression": (losses.RegressionLoss, reference.regression),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def by_hand(oracle, rows, targets, weights=None):
    return reference.mean(oracle(rows, targets), [True] * len(rows), weights)


@every_kind
@pytest.mark.parametrize("weights", [None, np.linspace(0, 3, 7)], ids=["unweighted", "weighted"])
def test_value_and_gradient_are_those_of_plain_loops(kind, weights):
    make, oracle = KINDS[kind]
    value, gradient = value_and_gradient(make(), TARGETS, ROWS, weights)
    np.testing.assert_allclose(value, by_hand(oracle, ROWS, TARGETS, weights), rtol=1e-9)
    expected = slopes(lambda rows: by_hand(oracle, rows, TARGETS, weights), ROWS)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


@every_kind
def test_fit_compiled_by_xla_is_fit(kind):
    values = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3)])
        model.compile("sgd", KINDS[kind][0](), jit_compile=jit_compile)
        model.fit(WIDER, TARGETS, batch_size=7, epochs=2, shuffle=False, verbose=0)
        values.append(model.get_weights())
    for one, other in zip(*values):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_relations_are_those_of_targets_of_other_dimensions():
    value = losses.RelationalLoss()(WIDER, ROWS)
    np.testing.assert_allclose(value, by_hand(reference.relational, ROWS, WIDER), rtol=1e-9)
    turned = WIDER @ np.linalg.qr(RNG.normal(size=[5, 5]))[0]
    np.testing.assert_allclose(losses.RelationalLoss()(WIDER, turned), 0, atol=1e-9)


@pytest.mark.parametrize(
    "rows", [np.ones([1, 3]), np.ones([4, 3]), np.zeros([4, 3])], ids=["one", "equal", "zeros"]
)
def test_batches_without_distances_have_no_relational_gradient(rows):
    value, gradient = value_and_gradient(losses.RelationalLoss(), rows, rows)
    assert float(value) == 0 and not np.any(gradient)


@every_kind
def test_targets_get_no_gradient_and_reductions_are_those_of_keras(kind):
    make, oracle = KINDS[kind]
    targets = tf.constant(TARGETS)
    with tf.GradientTape() as tape:
        tape.watch(targets)
        value = make(reduction="sum")(targets, ROWS)
    assert tape.gradient(value, targets) is None
    each = oracle(ROWS, TARGETS)
    np.testing.assert_allclose(value, sum(each))
    np.testing.assert_allclose(make(reduction=None)(TARGETS, ROWS), each)


@every_kind
def test_fit_takes_the_targets_in_place_of_labels(kind):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
    model.compile("sgd", KINDS[kind][0]())
    first = float(model.loss(TARGETS, model(ROWS)))
    logged = model.fit(ROWS, TARGETS, 7, epochs=20, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(logged[0], first, rtol=1e-5)
    assert logged[-1] < logged[0]


@every_kind
def test_config_survives_a_round_trip_through_json(kind):
    loss = KINDS[kind][0](reduction="sum", name="taught")
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert type(revived) is type(loss) and revived.get_config() == loss.get_config()
    assert repr(KINDS[kind][0]()) == f"{kind.capitalize()}Loss()"


def test_targets_of_another_shape_are_refused():
    with pytest.raises(InputError, match=r"`targets`\. Expected shape \(7, 3\).*\(7, 5\)"):
        losses.RegressionLoss()(WIDER, ROWS)
    with pytest.raises(InputError, match=r"`targets`\. Expected floats"):
        losses.RelationalLoss()(np.arange(7), ROWS)
