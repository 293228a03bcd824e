"""Ranked List Loss beyond the contract of all losses: what is mined, and a temperature that changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.cases import slow
from tests.losses.fresh_process import FEATURES, LABELS
from tfrank.common.checks import InputError
from tfrank.losses import RankedListLoss


def value_and_gradient(loss, labels, rows):
    rows = tf.convert_to_tensor(rows)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = loss(labels, rows)
    return value, tape.gradient(value, rows)


def expected(labels, rows, **settings):
    return reference.mean(*reference.ranking.rll(*reference.one_batch(labels, rows), **settings))


def test_rll_simpler_puts_the_boundaries_about_1_and_passes_on_the_rest():
    given = {"negative_weight": 0.3, "constant_gallery": False, "decay_steps": 7, "reduction": None}
    config = RankedListLoss.simpler(0.6, 3.0, **given).get_config()
    assert config == RankedListLoss(0.6, alpha=1.3, negative_temperature=3.0, **given).get_config()
    assert config["positive_temperature"] == 0
    assert RankedListLoss.simpler(0.4, 10.0).get_config() == RankedListLoss().get_config()


# What is mined. Unit vectors, exact in every dtype, as are their distances of 0, 1 and 2.

EAST, NORTH, WEST, SOUTH = np.eye(4)[0], np.eye(4)[1], -np.eye(4)[0], -np.eye(4)[1]
NORTH_EAST = np.full(4, 0.5)  # At distance 1 of both.
BOUNDARIES = {
    # Settings, labels and rows, and the loss of the first row; were the boundary mined, it would be half.
    "negative at alpha = 2": ({"alpha": 2.0}, [0, 0, 1, 1], [EAST, EAST, WEST, NORTH], 0.5 * (2 - 2**0.5)),
    "negative at alpha = 1": ({"alpha": 1.0}, [0, 0, 1, 1], [EAST, EAST, NORTH_EAST, EAST], 0.5),
    "positive at alpha - m = 1": ({"alpha": 1.5, "margin": 0.5}, [0] * 3, [EAST, NORTH_EAST, WEST], 0.5),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settings, labels, rows, by_hand", BOUNDARIES.values(), ids=BOUNDARIES)
def test_a_row_at_the_boundary_is_not_mined(settings, labels, rows, by_hand, dtype):
    loss = RankedListLoss(**settings, negative_temperature=0, reduction=None)
    np.testing.assert_allclose(loss(labels, np.array(rows, dtype))[0], by_hand, rtol=1e-6)


def test_a_query_with_nothing_mined_counts_with_0_and_one_without_positives_does_not_count():
    labels, rows = [0, 0, 1, 1, 2], np.array([EAST, EAST, WEST, NORTH, SOUTH])
    apart = 0.5 * (2**0.5 - 0.8)  # What WEST and NORTH lack to a distance of alpha - m.
    values = RankedListLoss(reduction=None)(labels, rows)
    np.testing.assert_allclose(values, [0, 0, apart, apart, 0], atol=1e-12)
    np.testing.assert_allclose(RankedListLoss()(labels, rows), 2 * apart / 4, rtol=1e-12)


@pytest.mark.parametrize("constant_gallery", [True, False])
def test_gradient_at_distance_0_is_0(constant_gallery):
    """Negatives equal to the query are mined, but there is no direction to push them in."""
    labels, rows = tf.constant([0, 0, 1, 1]), tf.constant([EAST] * 4)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        # By `score`: normalisation would take out what is along the row itself, as all of it would be here.
        losses, _ = RankedListLoss(constant_gallery=constant_gallery).score(
            labels, rows, labels, rows, tf.range(4)
        )
    np.testing.assert_allclose(losses, [0.5 * 1.2] * 4, rtol=1e-12)
    assert np.all(tape.gradient(losses, rows) == 0)


@pytest.mark.parametrize("constant_gallery", [True, False])
def test_only_the_query_moves_where_the_gallery_is_constant(constant_gallery):
    """The queries are of the second class; boundaries at 0 and 2 mine every pair."""
    rows = tf.constant(np.random.default_rng(0).normal(size=(6, 3)))
    loss = RankedListLoss(2.0, alpha=2.0, constant_gallery=constant_gallery)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = loss([0, 0, 0, 1, 1, 1], rows, sample_weight=[0, 0, 0, 1, 1, 1])
    moved = np.any(tape.gradient(value, rows) != 0, axis=1)
    assert moved.tolist() == [not constant_gallery] * 3 + [True] * 3


# Temperatures.

LARGE_LABELS = np.arange(512) % 128
LARGE_ROWS = np.random.default_rng(0).normal(size=(512, 8))


@pytest.mark.parametrize("sign", [1, -1], ids=["far positives first", "near positives first"])
@pytest.mark.parametrize("temperature", [slow(20.0), slow(1e4), 1e12])
def test_weights_of_512_rows_do_not_overflow(temperature, sign):
    settings = {"negative_temperature": temperature, "positive_temperature": sign * temperature}
    by_hand = expected(LARGE_LABELS, LARGE_ROWS, **settings)
    for dtype, tolerance in [("float64", 1e-12), ("float32", 1e-5)]:
        loss = RankedListLoss(**settings)
        value, gradient = value_and_gradient(loss, LARGE_LABELS, LARGE_ROWS.astype(dtype))
        np.testing.assert_allclose(value, by_hand, rtol=tolerance)
        assert np.all(np.isfinite(gradient)) and np.any(gradient)


TEMPERATURES = [10.0, 8.0, 6.0, 4.0, 2.0, 2.0]  # From 10 to 2 within 4 steps, and after.


def dynamic_loss():
    return RankedListLoss(negative_temperature=10, final_negative_temperature=2, decay_steps=4)


@pytest.mark.parametrize("iteration, temperature", [*enumerate(TEMPERATURES), (2**40, 2.0)])
def test_negative_temperature_is_linear_in_the_step_and_then_stays(iteration, temperature):
    """At a step that may be any kind of variable; T_n may also rise."""
    rows = np.random.default_rng(0).normal(size=(12, 3))
    for variable in (tf.Variable(iteration, dtype="int64"), keras.Variable(iteration, dtype="int64")):
        loss = dynamic_loss()
        loss.iteration = variable
        by_hand = expected(LABELS, rows, negative_temperature=temperature)
        np.testing.assert_allclose(loss(LABELS, rows), by_hand, rtol=1e-12)
    loss = RankedListLoss(negative_temperature=2, final_negative_temperature=10, decay_steps=4)
    loss.iteration = variable
    by_hand = expected(LABELS, rows, negative_temperature=12 - temperature)
    np.testing.assert_allclose(loss(LABELS, rows), by_hand, rtol=1e-12)


def test_a_changing_temperature_without_an_iteration_is_refused():
    with pytest.raises(InputError, match=r"'rll' changes .* Set loss\.iteration = optimizer\.iterations"):
        dynamic_loss()(LABELS, FEATURES)


def dynamic_model():
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    model.compile(keras.optimizers.Adam(0.05), dynamic_loss())
    model.loss.iteration = model.optimizer.iterations
    return model


def fit(model, steps, callbacks=()):
    """The loss of each step; a step sees all rows."""
    history = model.fit(FEATURES, LABELS, 12, steps, shuffle=False, callbacks=[*callbacks], verbose=0)
    return history.history["loss"]


class Kernels(keras.callbacks.Callback):
    """The weights before each step."""

    def __init__(self):
        super().__init__()
        self.kernels = []

    def on_train_batch_begin(self, batch, logs=None):
        self.kernels.append(self.model.get_weights()[0])


def by_hand(kernels, temperatures):
    """The oracle's loss for each kernel at its temperature."""
    return [expected(LABELS, FEATURES @ k, negative_temperature=t) for k, t in zip(kernels, temperatures)]


def test_in_fit_the_temperature_follows_the_steps_without_retracing(monkeypatch):
    model, recorded, traces = dynamic_model(), Kernels(), []
    score = model.loss._score
    monkeypatch.setattr(model.loss, "_score", lambda *rows: traces.append(None) or score(*rows))
    first = fit(model, 1, [recorded])
    traced = len(traces)
    values = first + fit(model, len(TEMPERATURES) - 1, [recorded])
    np.testing.assert_allclose(values, by_hand(recorded.kernels, TEMPERATURES), rtol=1e-5)
    assert traced == len(traces) > 0
    # The temperature shows at this tolerance.
    assert np.all(np.abs(np.divide(values, by_hand(recorded.kernels, [10.0] * 6)) - 1)[1:] > 1e-3)


def test_in_fit_of_several_steps_an_epoch_the_temperature_follows_the_steps():
    model, recorded = dynamic_model(), Kernels()
    batches = tf.data.Dataset.from_tensors((FEATURES, LABELS)).repeat(2)
    values = model.fit(batches, epochs=3, shuffle=False, callbacks=[recorded], verbose=0).history["loss"]
    steps = np.reshape(by_hand(recorded.kernels, TEMPERATURES), [3, 2])
    np.testing.assert_allclose(values, steps.mean(axis=1), rtol=1e-5)


def test_evaluate_takes_the_temperature_of_the_steps_taken_and_does_not_advance_it():
    model = dynamic_model()
    fit(model, 2)
    values = [model.evaluate(FEATURES, LABELS, 12, verbose=0) for _ in range(2)]
    np.testing.assert_allclose(values, by_hand(model.get_weights() * 2, [TEMPERATURES[2]] * 2), rtol=1e-5)
    assert fit(model, 1) == pytest.approx(values[:1], rel=1e-6)


def resume_from_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "checkpoint"))
    fresh = dynamic_model()
    fresh.optimizer.build(fresh.trainable_variables)
    tf.train.Checkpoint(model=fresh, optimizer=fresh.optimizer).restore(path).assert_consumed()
    return fresh


def resume_from_keras_file(model, folder):
    model.save(folder / "model.keras")
    fresh = keras.models.load_model(folder / "model.keras")
    fresh.loss.iteration = fresh.optimizer.iterations
    return fresh


@pytest.mark.parametrize("resume", [resume_from_checkpoint, slow(resume_from_keras_file)])
def test_resumed_training_goes_on_at_the_temperature_it_had(resume, tmp_path):
    interrupted = dynamic_model()
    losses = fit(interrupted, 2)
    losses += fit(resume(interrupted, tmp_path), 4)
    assert losses == fit(dynamic_model(), 6)
