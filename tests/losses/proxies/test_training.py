"""Every loss with proxies in training: Keras' fit, our step, optimizers, saving, export."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses.fresh_process import FEATURES, LABELS, train_one_step
from tests.losses.proxies import every_loss, one_of_each_kind, training_model
from tests.losses.proxies.replicas import CASES
from tests.programs import printed_json
from tfrank import MultiStageModel, losses
from tfrank.losses import proxies
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import build_step

CLASSES = [0, 1, 2, 3, 4, 9]


def compiled(recipe, optimizer=None, **options):
    """An embedding model, and the model for its training."""
    loss = recipe.loss(CLASSES)
    model, training = training_model(loss)
    training.compile(optimizer or keras.optimizers.SGD(0.1), loss, **options)
    training.optimizer.build(training.trainable_variables)
    return model, training


def assert_same(one, other, tolerance):
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=tolerance)


@pytest.mark.parametrize("jit_compile", ["auto", pytest.param(True, marks=pytest.mark.slow)])
@one_of_each_kind
def test_fit_logs_the_loss_computed_by_hand_and_learns(recipe, jit_compile):
    _, training = compiled(recipe, jit_compile=jit_compile)
    penalty = sum(map(float, training.losses))
    assert (penalty > 0) == (recipe.name == "soft_triple")
    by_hand = training.loss(LABELS, training(FEATURES)) + penalty
    first = train_one_step(training)
    np.testing.assert_allclose(first, by_hand, rtol=1e-5)
    assert [train_one_step(training) for _ in range(10)][-1] < first - 0.05


@one_of_each_kind
def test_large_labels_reach_the_loss_of_fit_unharmed(recipe):
    """In float32 these two classes are one."""
    labels = 2**24 + np.arange(12) % 2
    loss = recipe.loss(labels)
    _, training = training_model(loss)
    training.compile("sgd", loss)
    by_hand = loss(labels, training(FEATURES)) + sum(training.losses)
    history = training.fit(FEATURES, labels, batch_size=12, verbose=0)
    np.testing.assert_allclose(history.history["loss"], [by_hand], rtol=1e-5)


def test_fit_on_a_label_that_is_not_of_training_names_it():
    loss = losses.get("proxy_nca", labels=CLASSES)
    _, training = training_model(loss)
    training.compile("sgd", loss)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected one of the 6 labels.*\[77\]"):
        training.fit(FEATURES, np.where(LABELS == 4, 77, LABELS), verbose=0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", slow("mixed_float16")])
@one_of_each_kind
def test_fit_learns_in_mixed_precision(recipe, policy):
    keras.config.set_dtype_policy(policy)
    try:
        _, training = compiled(recipe)
        losses = [train_one_step(training) for _ in range(15)]
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.all(np.isfinite(losses)) and losses[-1] < losses[0] - 0.05
    assert training.layers[-1].proxies.dtype == "float32"


# Batches in stages, and several replicas.


def own_steps(recipe, micro_batch_size, optimizer):
    """Losses and weights of three steps of `build_step`."""
    _, training = compiled(recipe, optimizer)
    step = build_step(
        training,
        training.loss,
        training.optimizer,
        strategy=tf.distribute.get_strategy(),
        micro_batch_size=micro_batch_size,
    )
    batch = {"image": tf.constant(FEATURES), "label": tf.constant(LABELS)}
    return [float(step(batch).loss) for _ in range(3)], training


@pytest.mark.parametrize("name", ["sgd", "adam"])
@one_of_each_kind
def test_the_batch_in_stages_gives_the_weights_of_the_batch_at_once(recipe, name):
    at_once, in_stages = (
        own_steps(recipe, size, build_optimizer(name, learning_rate=0.01)) for size in (0, 5)
    )
    np.testing.assert_allclose(in_stages[0], at_once[0], rtol=1e-5)
    assert_same(in_stages[1].get_weights(), at_once[1].get_weights(), 2e-6)
    assert in_stages[1].optimizer.iterations == at_once[1].optimizer.iterations == 3


@one_of_each_kind
def test_fit_in_stages_gives_the_weights_of_fit(recipe):
    _, at_once = compiled(recipe)
    _, inside = compiled(recipe)
    in_stages = MultiStageModel(inside, micro_batch_size=5)
    in_stages.compile(keras.optimizers.SGD(0.1), at_once.loss)
    losses = [[train_one_step(model) for _ in range(3)] for model in (at_once, in_stages)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert_same(inside.get_weights(), at_once.get_weights(), 1e-6)


@pytest.fixture(scope="module")
def results():
    """What all ways of training gave, by one program with the one strategy a process may hold."""
    return printed_json("-m", "tests.losses.proxies.replicas")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_replicas_give_the_losses_and_the_updates_of_one_device(results, case):
    one, two = results[case]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-5)
    for expected, update in zip(one["update"], two["update"], strict=True):
        assert np.any(expected)
        np.testing.assert_allclose(update, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


# Optimizers.


@pytest.mark.parametrize("name", [slow("sgd"), "adam"])
@one_of_each_kind
def test_a_multiplier_of_10_is_a_10_times_higher_rate_for_proxies_only(recipe, name):
    def trained(rate, **options):
        _, training = compiled(recipe, build_optimizer(name, learning_rate=rate, **options))
        train_one_step(training)
        return [*training.layers[0].get_weights(), training.layers[1].get_weights()[0]]

    rate = 2**-7  # Ten times it is without rounding.
    multiplied = trained(rate, multipliers={"proxies": 10})
    *as_before, proxies_before = trained(rate)
    *_, proxies_faster = trained(10 * rate)
    assert_same(multiplied, [*as_before, proxies_faster], 0)
    assert not np.allclose(proxies_before, proxies_faster, atol=1e-4)


# What is kept.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights after two steps with a save between them: here, and in a fresh process."""
    folder = tmp_path_factory.mktemp("models")
    here = {}
    for name in proxies.PROXY_LOSSES:
        loss = losses.get(name, labels=CLASSES)
        _, training = training_model(loss)
        training.compile(build_optimizer("adam", learning_rate=0.01, multipliers={"proxies": 10}), loss)
        train_one_step(training)
        training.save(folder / f"{name}.keras")
        train_one_step(training)
        here[name] = training.get_weights()
    printed_json("-c", f"import tests.losses.fresh_process as p; p.main({str(folder)!r}); print(0)")
    return here, {name: list(np.load(folder / f"{name}.npz").values()) for name in proxies.PROXY_LOSSES}


@pytest.mark.slow
@every_loss
def test_a_step_after_save_and_load_in_a_fresh_process_gives_the_same_bits(trained, recipe):
    here, there = (weights[recipe.name] for weights in trained)
    assert [weight.tobytes() for weight in here] == [weight.tobytes() for weight in there]


@one_of_each_kind
def test_a_checkpoint_restores_proxies_and_their_slots(recipe, tmp_path):
    def checkpointed():
        _, training = compiled(recipe, build_optimizer("adam", learning_rate=0.01))
        return training, tf.train.Checkpoint(model=training, optimizer=training.optimizer)

    training, checkpoint = checkpointed()
    train_one_step(training)
    path = checkpoint.save(tmp_path / "checkpoint")
    train_one_step(training)
    again, checkpoint = checkpointed()
    checkpoint.restore(path).assert_consumed()
    train_one_step(again)
    assert_same(again.get_weights(), training.get_weights(), 0)


@one_of_each_kind
def test_the_export_of_the_embedding_model_is_trained_and_has_no_proxies(recipe, tmp_path):
    def exported(exporting):
        folder = str(tmp_path / exporting.name)
        exporting.export(folder, verbose=False)
        return tf.saved_model.load(folder)

    def shapes(served):
        return sorted(tuple(variable.shape) for variable in served.variables)

    model, training = compiled(recipe)
    train_one_step(training)
    of_proxies = tuple(training.layers[-1].proxies.shape)
    served = exported(model)
    np.testing.assert_allclose(served.serve(FEATURES), model(FEATURES), rtol=1e-5)
    assert shapes(served) == [(4,), (6, 4)]
    assert shapes(exported(training)) == sorted([(4,), (6, 4), of_proxies])
