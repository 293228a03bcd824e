"""Losses that change with the training step find it by themselves under Keras' fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.losses.fresh_process import FEATURES, LABELS
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.proxies import SampledProxyLoss

CHANGING = {
    "warm-up": lambda: tfrank.PNPLoss("dq", warmup_steps=4, temperature=1.0),
    "decay": lambda: tfrank.RankedListLoss(final_negative_temperature=1.0, decay_steps=4),
    "virtual rows": lambda: tfrank.RecallAtKLoss([1, 2], k_temperatures=[1, 2], temperature=1.0, simix=True),
    "draws of negatives": lambda: tfrank.MarginLoss(0.9, nonzero_cutoff=1.99),
    "sampled proxies": lambda: SampledProxyLoss(losses.get("cos_face", labels=range(40)), share=0.3),
    "part of a sum": lambda: tfrank.WeightedSum([tfrank.PNPLoss("dq", warmup_steps=4, temperature=1.0)]),
    "before a memory": lambda: tfrank.CrossBatchMemory(
        tfrank.PNPLoss("dq", warmup_steps=4, temperature=1.0), size=100
    ),
}


def compiled(loss, rate=0.0, **options):
    """A model that by default stays as it is, so that only the step changes the loss."""
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    if hasattr(loss, "proxies"):
        model.add(loss.proxies())
    model.compile(keras.optimizers.SGD(rate, **options), loss)
    return model


def losses_of_steps(model, epochs):
    options = {"batch_size": len(LABELS), "shuffle": False, "verbose": 0}
    return model.fit(FEATURES, LABELS, epochs=epochs, **options).history["loss"]


def at_step(loss, step, model):
    loss.iteration = tf.Variable(step, dtype=tf.int64)
    value = float(loss(LABELS, model(FEATURES)))
    loss.iteration = None
    return value


def test_a_model_of_several_optimizers_has_no_step_that_is_known():
    class Own(keras.Sequential):
        def compile(self, loss):
            super().compile(loss=loss)
            self.of_steps = keras.optimizers.SGD(0.1)

    loss = CHANGING["warm-up"]()
    for is_known in (False, True):
        model = Own([keras.Input([6]), keras.layers.Dense(4)])
        model.compile(loss)
        if is_known:
            loss.iteration = model.of_steps.iterations
            losses_of_steps(model, 1)
        else:
            with pytest.raises(InputError, match=r"several optimizers.*Set loss\.iteration = optimizer\.it"):
                losses_of_steps(model, 1)


@pytest.mark.parametrize("accumulated", [None, 2])
@pytest.mark.parametrize("kind", CHANGING)
def test_each_update_of_fit_has_its_own_step(kind, accumulated):
    loss = CHANGING[kind]()
    model = compiled(loss, gradient_accumulation_steps=accumulated)
    each = accumulated or 1
    values = losses_of_steps(model, 3 * each)
    by_hand = [at_step(loss, step, model) for step in range(3)]
    np.testing.assert_allclose(values, np.repeat(by_hand, each), rtol=1e-5)
    assert len(set(by_hand)) == 3
    evaluated = model.evaluate(FEATURES, LABELS, batch_size=len(LABELS), verbose=0)
    assert evaluated == pytest.approx(at_step(loss, 3, model), rel=1e-5)


def test_a_loaded_model_and_one_compiled_anew_go_on_by_their_own_optimizer(tmp_path):
    model = compiled(CHANGING["warm-up"]())
    values = losses_of_steps(model, 4)
    other = compiled(CHANGING["warm-up"]())
    losses_of_steps(other, 2)
    other.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(losses_of_steps(loaded, 2), values[2:], rtol=1e-6)
    loaded.compile(keras.optimizers.SGD(0.0), loaded.loss)
    np.testing.assert_allclose(losses_of_steps(loaded, 1), values[:1], rtol=1e-6)


def test_fit_in_stages_and_in_mixed_precision_have_the_step_too():
    loss = CHANGING["warm-up"]()
    plain = compiled(loss)
    by_hand = [at_step(loss, step, plain) for step in range(3)]
    staged = tfrank.MultiStageModel(plain, micro_batch_size=5)
    staged.compile(keras.optimizers.SGD(0.0), loss)
    np.testing.assert_allclose(losses_of_steps(staged, 3), by_hand, rtol=1e-5)
    scaled = keras.Sequential([keras.Input([6]), plain])
    inner = keras.optimizers.SGD(0.0, gradient_accumulation_steps=2)
    scaled.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0), loss)
    np.testing.assert_allclose(losses_of_steps(scaled, 4), np.repeat(by_hand[:2], 2), rtol=1e-5)


@pytest.mark.parametrize(
    "step",
    [0, -1, 0.0, True, [0], np.int64(3), tf.constant(0), "0", lambda: 0],
    ids=["int", "negative", "float", "bool", "list", "numpy", "tensor", "text", "function"],
)
def test_what_would_be_the_same_at_all_steps_is_refused(step):
    parts = [tfrank.MarginLoss(), tfrank.RankedListLoss(decay_steps=2), tfrank.PNPLoss()]
    for loss in (*parts, tfrank.WeightedSum(parts), tfrank.CrossBatchMemory(parts[0], 8)):
        with pytest.raises(InputError, match=r"`iteration`. Expected a variable, .* same at all steps"):
            loss.iteration = step


def test_the_iterations_of_an_optimizer_that_accumulates_are_refused_as_they_never_change():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(InputError, match="Leave iteration unset under Keras' fit"):
        tfrank.PNPLoss(warmup_steps=3).iteration = optimizer.iterations


@pytest.mark.parametrize("variable", [tf.Variable(0.0), tf.Variable([0]), keras.Variable(1.0)])
def test_a_variable_that_counts_nothing_is_refused(variable):
    with pytest.raises(InputError, match=r"`iteration`. Expected an integer of at least 0"):
        tfrank.MarginLoss().iteration = variable


def test_the_memory_joins_after_its_warm_up_of_batches_also_with_accumulated_gradients():
    loss = tfrank.CrossBatchMemory(tfrank.PNPLoss("dq", temperature=1.0), size=12, warm_up=3)
    values = losses_of_steps(compiled(loss, gradient_accumulation_steps=2), 5)
    assert values[0] == values[1] == values[2] != values[3]
