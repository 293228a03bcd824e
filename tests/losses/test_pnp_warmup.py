"""PNP-Dq's warm-up: from Ds to Dq by the step."""

import numpy as np
import pytest
import tensorflow as tf

from tfrank import PNPLoss
from tfrank.common.checks import InputError

RNG = np.random.default_rng(0)
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 3])
EMBEDDINGS = RNG.normal(size=[8, 3])
TEMPERATURE, ALPHA, STEPS = 0.2, 3.0, 5


def at_step(step):
    loss = PNPLoss("dq", alpha=ALPHA, temperature=TEMPERATURE, warmup_steps=STEPS)
    loss.iteration = tf.Variable(step, dtype=tf.int64)
    return loss


def by_loops(embeddings, exponent):
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    losses = []
    for q in range(8):
        positives = [i for i in range(8) if i != q and LABELS[i] == LABELS[q]]
        parts = []
        for i in positives:
            R = sum(
                1 / (1 + np.exp(-(unit[q] @ unit[j] - unit[q] @ unit[i]) / TEMPERATURE))
                for j in range(8)
                if LABELS[j] != LABELS[q]
            )
            parts.append(ALPHA / exponent * (1 - (1 + R) ** -exponent))
        if parts:
            losses.append(np.mean(parts))
    return np.mean(losses)


@pytest.mark.parametrize("step, exponent", [(0, 0.6), (1, 1.2), (4, 3.0), (1000, 3.0)])
def test_the_exponent_rises_to_alpha_by_the_step(step, exponent):
    value = at_step(step)(LABELS, tf.constant(EMBEDDINGS))
    np.testing.assert_allclose(value, by_loops(EMBEDDINGS, exponent), rtol=1e-9)


def test_the_gradient_is_the_numerical_one():
    loss, embeddings = at_step(1), tf.constant(EMBEDDINGS)
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        value = loss(LABELS, embeddings)
    gradient = tape.gradient(value, embeddings).numpy()
    for place in np.ndindex(*EMBEDDINGS.shape):
        moved = [EMBEDDINGS.copy() for _ in range(2)]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        wanted = (by_loops(moved[0], 1.2) - by_loops(moved[1], 1.2)) / 2e-6
        assert gradient[place] == pytest.approx(wanted, abs=1e-7)


def test_after_the_warm_up_it_is_dq():
    plain = PNPLoss("dq", alpha=ALPHA, temperature=TEMPERATURE)
    np.testing.assert_allclose(at_step(STEPS)(LABELS, EMBEDDINGS), plain(LABELS, EMBEDDINGS), rtol=1e-6)


def test_a_step_that_changes_compiles_nothing_anew():
    loss = at_step(0)
    traces = []

    @tf.function
    def value():
        traces.append(1)
        return loss(LABELS, tf.constant(EMBEDDINGS))

    values = []
    for step in range(4):
        loss.iteration.assign(step)
        values.append(float(value()))
    assert len(traces) == 1 and len(set(values)) == 4


def test_without_a_counter_of_steps_it_says_what_to_set():
    with pytest.raises(InputError, match=r"loss\.iteration = optimizer\.iterations"):
        PNPLoss(warmup_steps=3)(LABELS, EMBEDDINGS)


def test_only_dq_has_a_warm_up():
    warming, plain = PNPLoss("ds", warmup_steps=3), PNPLoss("ds")
    assert float(warming(LABELS, EMBEDDINGS)) == float(plain(LABELS, EMBEDDINGS))


def test_the_config_keeps_it():
    assert PNPLoss.from_config(PNPLoss(warmup_steps=3).get_config()).warmup_steps == 3
