"""A loss made of losses: the sum of its parts, in every respect."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses import LABELS, embeddings
from tests.losses import fresh_process as small
from tfrank.common.checks import InputError
from tfrank.losses import PNPLoss, QuantizedAPLoss, RankedListLoss, RecallAtKLoss, SmoothAPLoss, WeightedSum

WEIGHTS = [1.0, 0.25, -0.5]


def parts(reduction="mean"):
    """Of which one weighs its queries in its own way, and one changes with the step."""
    return [
        PNPLoss("ds", reduction=reduction),
        QuantizedAPLoss(class_weights=True, reduction=reduction),
        RankedListLoss(final_negative_temperature=2, decay_steps=4, reduction=reduction),
    ]


def small_model(loss):
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.loss.iteration = model.optimizer.iterations
    return model


@pytest.mark.parametrize("sample_weight", [None, np.linspace(0, 3, 11)], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", None])
def test_value_and_gradient_are_the_weighted_sum_of_the_parts(reduction, sample_weight):
    loss = WeightedSum(parts(reduction), WEIGHTS)
    loss.iteration = tf.Variable(3)
    rows = tf.constant(embeddings())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rows)
        value = loss(LABELS, rows, sample_weight)
        terms = [part(LABELS, rows, sample_weight) for part in loss.losses]
    np.testing.assert_allclose(value, sum(w * term for w, term in zip(WEIGHTS, terms)), rtol=1e-12)
    by_hand = sum(w * tape.gradient(term, rows) for w, term in zip(WEIGHTS, terms))
    np.testing.assert_allclose(tape.gradient(value, rows), by_hand, rtol=1e-9, atol=1e-12)
    assert value.shape == ([] if reduction else [11])


def test_weights_are_1_where_none_are_given():
    pnp, smooth_ap = PNPLoss(), SmoothAPLoss()
    value = WeightedSum([pnp, smooth_ap])(LABELS, embeddings())
    np.testing.assert_allclose(value, pnp(LABELS, embeddings()) + smooth_ap(LABELS, embeddings()))


def test_fit_logs_the_sum_at_every_step():
    model, values, by_hand = small_model(WeightedSum(parts(), WEIGHTS)), [], []
    for _ in range(3):
        by_hand.append(model.loss(small.LABELS, model(small.FEATURES)))
        values.append(small.train_one_step(model))
    np.testing.assert_allclose(values, by_hand, rtol=1e-5)
    assert len(set(values)) == 3


@pytest.mark.slow
def test_a_saved_model_goes_on_with_the_sum(tmp_path):
    model = small_model(WeightedSum(parts(), WEIGHTS, name="both"))
    small.train_one_step(model)
    model.save(tmp_path / "model.keras")
    revived = keras.models.load_model(tmp_path / "model.keras")
    revived.loss.iteration = revived.optimizer.iterations
    assert revived.loss.name == "both"
    assert [small.train_one_step(revived) for _ in range(2)] == [
        small.train_one_step(model) for _ in range(2)
    ]


@pytest.mark.parametrize("reduction", ["mean", None])
def test_config_survives_a_round_trip_through_json(reduction):
    recall = RecallAtKLoss([1, 2], k_temperatures=[1, 0.5], simix=True, seed=3, reduction=reduction)
    loss = WeightedSum([*parts(reduction), recall], [*WEIGHTS, 2], name="all")
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert type(revived) is WeightedSum
    assert revived.get_config() == loss.get_config()
    assert [part.get_config() for part in revived.losses] == [part.get_config() for part in loss.losses]
    for each in (loss, revived):
        each.iteration = tf.Variable(1)
    np.testing.assert_array_equal(revived(LABELS, embeddings()), loss(LABELS, embeddings()))


def test_the_iteration_is_set_for_all_parts():
    loss, steps = WeightedSum(parts()), tf.Variable(0, dtype=tf.int64)
    with pytest.raises(InputError, match=r"'rll' .* Set loss\.iteration = optimizer\.iterations"):
        loss(LABELS, embeddings())
    loss.iteration = steps
    assert loss.iteration is steps
    assert all(part.iteration is steps for part in loss.losses)
    at_first = loss(LABELS, embeddings())
    steps.assign(4)
    assert loss(LABELS, embeddings()) != at_first


def test_variables_are_those_of_the_parts(monkeypatch):
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    assert WeightedSum(parts()).variables == []
    monkeypatch.setattr(PNPLoss, "variables", [first])
    monkeypatch.setattr(QuantizedAPLoss, "variables", [second])
    assert [id(variable) for variable in WeightedSum(parts()).variables] == [id(first), id(second)]


PAIR = [PNPLoss(), SmoothAPLoss()]


@pytest.mark.parametrize(
    "losses, weights, message",
    [
        ([], None, r"`losses`\. Expected a list of at least one loss of tfrank"),
        (["pnp"], None, r"`losses`\. Expected a list of at least one loss of tfrank"),
        ([PNPLoss(), keras.losses.MeanSquaredError()], None, r"`losses`\. Expected .* loss of tfrank"),
        ([PNPLoss(), PNPLoss(reduction=None)], None, r"`losses`.* one reduction.*\['mean', None\]"),
        (PAIR, [1.0], r"`weights`\. Expected one number for each of 2 losses"),
        (PAIR, [1.0, 2.0, 3.0], r"`weights`\. Expected one number for each of 2 losses"),
        (PAIR, [], r"`weights`\. Expected a list of numbers"),
        (PAIR, 1.0, r"`weights`\. Expected a list of numbers"),
        (PAIR, [1.0, float("nan")], r"`weights`\. Expected a finite number.*nan"),
        (PAIR, [float("inf"), 1.0], r"`weights`\. Expected a finite number.*inf"),
        (PAIR, [1.0, "2"], r"`weights`\. Expected a finite number"),
        (PAIR, [True, 1.0], r"`weights`\. Expected a finite number"),
    ],
)
def test_bad_arguments_are_refused(losses, weights, message):
    with pytest.raises(InputError, match=f"argument {message}"):
        WeightedSum(losses, weights)
