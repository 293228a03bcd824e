"""Hyper-parameters that are numbers: one program for all values, and variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses import KINDS, LABELS, RECIPES, embeddings, slow_but_kinds, value_and_gradient
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.core import rows


def numbers_of(recipe):
    """The hyper-parameters of a loss that may change."""
    return {key: value for key, value in recipe.loss().hyper_parameters.items() if isinstance(value, float)}


def moved(value):
    """Another value, not below a least one of 0 or -1."""
    return (1.01 if value >= 0 else 0.99) * value + 0.001


def counted_traces(monkeypatch):
    """A list that grows whenever a kernel is traced for a program."""
    traced = []

    class Block(rows.Block):
        def __init__(self, *arguments):
            traced.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(rows, "Block", Block)
    return traced


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(one, marks=slow_but_kinds(one)) for one in RECIPES if numbers_of(one)],
    ids=str,
)
def test_other_numbers_need_no_other_program(monkeypatch, recipe):
    recipe.loss()(LABELS, embeddings())
    traced = counted_traces(monkeypatch)
    for key, value in numbers_of(recipe).items():
        value_and_gradient(recipe.loss(**{key: moved(value)}), LABELS, embeddings())
    assert not traced


@pytest.mark.parametrize(
    "recipe", [recipe for recipe in RECIPES if recipe.name in KINDS and numbers_of(recipe)], ids=str
)
def test_a_variable_may_change_between_steps_of_one_traced_function(recipe):
    numbers = numbers_of(recipe)
    others = {key: moved(value) for key, value in numbers.items()}
    variables = {key: tf.Variable(value, dtype=tf.float64) for key, value in numbers.items()}
    loss = recipe.loss(**variables)
    compute = tf.function(lambda *batch: value_and_gradient(loss, *batch), autograph=False)
    batch = tf.constant(LABELS), tf.constant(embeddings())
    for values in (numbers, others, numbers):
        for key, value in values.items():
            variables[key].assign(value)
        for function in (compute, lambda *batch: value_and_gradient(loss, *batch)):
            wanted = value_and_gradient(recipe.loss(**values), *batch)
            for got, want in zip(function(*batch), wanted):
                np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
        assert loss.get_config() == recipe.loss(**values).get_config()
    assert compute.experimental_get_tracing_count() == 1
    assert all(one is other for one, other in zip(loss.variables, variables.values(), strict=True))


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_a_callback_of_fit_may_change_a_temperature(make):
    temperature = make(0.5)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3, use_bias=False)])
    model.layers[0].kernel.assign(np.eye(3))
    model.compile(keras.optimizers.SGD(0.0), loss=losses.get("smooth_ap", temperature=temperature))
    change = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, _: temperature.assign(0.5 / 2**epoch)
    )
    batch = embeddings("float32")
    history = model.fit(batch, LABELS, batch_size=11, epochs=3, shuffle=False, verbose=0, callbacks=[change])
    wanted = [losses.get("smooth_ap", temperature=t)(LABELS, batch) for t in (0.5, 0.25, 0.125)]
    np.testing.assert_allclose(history.history["loss"], wanted, rtol=1e-5)


def test_the_exponent_of_a_warm_up_and_the_end_of_a_decay_follow_a_variable_too():
    batch = LABELS, embeddings()
    for name, key, settings in [
        ("pnp", "alpha", {"warmup_steps": 4}),
        ("rll", "negative_temperature", {"decay_steps": 4}),
    ]:
        variable = tf.Variable(2.0)
        changing = losses.get(name, **{key: variable}, **settings)
        variable.assign(3.0)
        fixed = losses.get(name, **{key: 3.0}, **settings)
        changing.iteration = fixed.iteration = tf.Variable(1)
        assert float(changing(*batch)) == float(fixed(*batch))


@pytest.mark.parametrize(
    "value, expected_text",
    [
        (-1.0, "a finite number above 0"),
        (float("nan"), "a finite number above 0"),
        (1, "a variable of one float.*int32"),
        ([0.1, 0.2], r"a variable of one float.*\(2,\)"),
    ],
)
def test_a_variable_that_cannot_be_a_temperature_is_refused(value, expected_text):
    with pytest.raises(InputError, match=f"argument `temperature`. Expected {expected_text}"):
        losses.get("pnp", temperature=tf.Variable(value))
