"""Learning rates as functions of the step."""

import decimal
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.training.schedules import SCHEDULES, build_schedule

TOTAL, WARMUP, BOUNDARIES, FACTOR = 12, 4, (2, 7), 0.5


def schedule(name, rate=0.3, **arguments):
    if name == "steps":
        arguments = {"boundaries": BOUNDARIES, "factor": FACTOR, **arguments}
    return build_schedule(name, rate, **{"total_steps": TOTAL, **arguments})


def expected_rates(name, warmup):
    """The rate of every step, written out."""
    rates = []
    for t in range(TOTAL):
        rate = 0.3
        if name == "linear":
            rate = 0.3 * (TOTAL - t) / TOTAL
        if name == "cosine" and t >= warmup:
            rate = 0.3 * (1 + math.cos(math.pi * (t - warmup) / (TOTAL - warmup))) / 2
        if name == "steps":
            for boundary in BOUNDARIES:
                rate = rate * FACTOR if boundary <= t else rate
        if t < warmup:
            rate = rate * (t + 1) / warmup
        rates.append(rate)
    return rates


@pytest.mark.parametrize("warmup", [0, 1, WARMUP])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_has_the_rate_of_the_formula(name, warmup):
    rate = tf.function(schedule(name, warmup_steps=warmup))
    rates = [float(rate(tf.constant(step, tf.int64))) for step in range(TOTAL)]
    np.testing.assert_allclose(rates, expected_rates(name, warmup), rtol=1e-7)


@pytest.mark.parametrize(
    "name, last", [("constant", 0.3), ("linear", 0.0), ("cosine", 0.0), ("steps", 0.3 * FACTOR**2)]
)
def test_beyond_the_total_the_rate_stays(name, last):
    # A boundary beyond the total is not reached then either.
    boundaries = (*BOUNDARIES, TOTAL) if name == "steps" else ()
    for warmup in (0, TOTAL):
        rate = schedule(name, warmup_steps=warmup, boundaries=boundaries)
        for step in (TOTAL, TOTAL + 1, 10**9):
            assert float(rate(step)) == pytest.approx(last, rel=1e-7, abs=0)


def test_warm_up_may_be_all_there_is():
    rates = [float(schedule("cosine", warmup_steps=TOTAL)(step)) for step in range(TOTAL)]
    np.testing.assert_allclose(rates, [0.3 * (t + 1) / TOTAL for t in range(TOTAL)], rtol=1e-7)


def test_rates_of_ten_million_steps_are_exact_to_the_last_one():
    total, warmup = 10**7, 10**6 + 3
    steps = [0, 1, warmup - 1, warmup, 5_000_001, total - 2, total - 1]
    linear = build_schedule("linear", 0.1, total_steps=total, warmup_steps=warmup)
    cosine = build_schedule("cosine", 0.1, total_steps=total)
    for step in steps:
        exact = decimal.Decimal("0.1") * (total - step) / total * min(step + 1, warmup) / warmup
        assert float(linear(step)) == np.float32(exact)
        # sin^2(x / 2) has no digits to lose where cos is near -1.
        exact = 0.1 * math.sin(math.pi / 2 * ((total - step) / total)) ** 2
        assert float(cosine(step)) == np.float32(exact)


def test_a_rate_has_the_float_type_of_keras():
    assert schedule("linear")(1).dtype == tf.float32
    try:
        keras.config.set_floatx("float64")
        assert float(schedule("linear")(1)) == pytest.approx(0.3 * 11 / 12, rel=1e-15)
        assert float(schedule("steps", factor=0.1)(7)) == pytest.approx(0.3 * 0.1 * 0.1, rel=1e-15)
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_survives_its_config(name):
    first = schedule(name, warmup_steps=3)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(first))
    assert [float(again(t)) for t in range(TOTAL)] == [float(first(t)) for t in range(TOTAL)]
    assert again.get_config() == first.get_config()


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("cosin", {}, r"argument `schedule`.*Did you mean \"cosine\"\?"),
        ("linear", dict(rate=0), "argument `learning_rate`. Expected a finite number above 0"),
        ("linear", dict(total_steps=0), "argument `total_steps`. Expected an integer of at least 1"),
        ("linear", dict(warmup_steps=-1), "argument `warmup_steps`. Expected an integer of at least 0"),
        ("cosine", dict(warmup_steps=13), "`warmup_steps`. Expected at most total_steps, which is 12"),
        ("steps", dict(boundaries=()), "argument `boundaries`. Expected a list of numbers"),
        ("steps", dict(boundaries=(0, 3)), "argument `boundaries`. Expected an integer of at least 1"),
        ("steps", dict(boundaries=(5, 5)), "argument `boundaries`. Expected steps in ascending order"),
        ("steps", dict(factor=0), "argument `factor`. Expected a finite number above 0 and of at most 1"),
        ("linear", dict(boundaries=(5,)), 'Expected none for the schedule "linear", only for "steps"'),
    ],
)
def test_a_bad_schedule_is_refused(name, arguments, message):
    with pytest.raises(InputError, match=message):
        schedule(name, **arguments)
