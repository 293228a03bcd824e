"""The devices of one machine: two of them go through a run, in one stage or several, as one does.

    python -m tests.training.test_strategy STRATEGY LOSS FOLDER

trains in a process of its own, and leaves the weights before and after, and what the loss keeps, in
`FOLDER/STRATEGY.npz`.
"""

import dataclasses
import os
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import run
from tfrank.common.checks import InputError
from tfrank.configs import digits
from tfrank.run import datasets, experiment
from tfrank.training.strategy import check_divides

STEPS, DEVICES = 6, 2
# On the devices at once, and in stages, where images stay on the host.
MICRO_BATCH_SIZES = (0, 4)
TAUGHT = ", taught and with memory"


def train(strategy_name, loss, folder):
    if strategy_name == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    config = digits.get_config(loss.partition(",")[0])
    if loss.endswith(TAUGHT):
        config.train.update(memory_size=30, memory_warm_up=1)
        config.train.update(teacher="teacher", regression_weight=1.0, relational_weight=1.0)
    config.data.update(train=(0, 1), test=(8, 9), image_size=8, classes_per_batch=6, max_shift=1)
    config.model.update(filters=8, embedding_dim=8)
    config.train.update(strategy=strategy_name, optimizer="sgd", checkpoint_every=STEPS, log_every=2)
    strategy = experiment.build_strategy(config.train, config.data.batch_size)
    assert strategy.num_replicas_in_sync == (DEVICES if strategy_name == "mirrored" else 1)
    plain, experiment.build_model = experiment.build_model, lambda *args, **size: frozen(plain(*args, **size))
    weights = {}
    for micro_batch_size in MICRO_BATCH_SIZES:
        keras.utils.clear_session()  # So that variables get the same names again.
        config.train.micro_batch_size = micro_batch_size
        workdir = os.path.join(folder, f"{strategy_name}_{micro_batch_size}")
        data = datasets.build_data(config.data, workdir, seed=config.seed)
        if loss.endswith(TAUGHT):
            rows = np.random.default_rng(0).normal(size=[len(data.train), 8]).astype(np.float32)
            data = dataclasses.replace(data, stored={"teacher": rows})
        training = experiment.build_training(config, workdir, strategy, STEPS, data.train, data.stored)
        variables = training.model.trainable_variables
        weights |= {f"{micro_batch_size}/before/{v.path}": v.numpy() for v in variables}
        experiment.train(config, training, data, STEPS)
        weights |= {f"{micro_batch_size}/after/{v.path}": v.numpy() for v in variables}
        saved = tf.train.load_checkpoint(os.path.join(workdir, "checkpoints"))
        for name in saved.get_variable_to_shape_map():
            if name.startswith("loss_state"):
                weights[f"{micro_batch_size}/{name}"] = saved.get_tensor(name)
    np.savez(os.path.join(folder, f"{strategy_name}.npz"), **weights)


def frozen(model):
    """A model whose batch norm is frozen, as stages on several devices need it."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    return model


def trained(strategy_name, loss, folder):
    ended = run("-m", "tests.training.test_strategy", strategy_name, loss, folder)
    assert ended.status == 0, ended.errors
    return np.load(folder / f"{strategy_name}.npz")


@pytest.mark.slow
# Three for each memory: that of the loss, and that of the loss against the teacher.
@pytest.mark.parametrize("loss, kept", [("proxy_nca", 1), ("pnp" + TAUGHT, 6)])
def test_two_devices_end_a_run_with_the_weights_of_one_also_in_stages(tmp_path, loss, kept):
    """And with the same proxies, or the same memory in the same order."""
    one, two = (trained(name, loss, tmp_path) for name in ("one_device", "mirrored"))
    names = [name.removeprefix("0/after/") for name in one.files if name.startswith("0/after/")]
    assert len(names) == 4  # Two convolutions, and the head's kernel and bias.
    for name in names:
        wanted = one[f"0/after/{name}"]
        update = wanted - one[f"0/before/{name}"]
        for results in (one, two):
            for micro_batch_size in MICRO_BATCH_SIZES:
                difference = results[f"{micro_batch_size}/after/{name}"] - wanted
                assert np.abs(difference).max() <= 1e-5, name
                assert np.linalg.norm(difference) <= 1e-4 * np.linalg.norm(update), name
    states = [name.removeprefix("0/") for name in one.files if name.startswith("0/loss_state")]
    assert len(states) == kept
    for name in states:
        for results in (one, two):
            for micro_batch_size in MICRO_BATCH_SIZES:
                found = results[f"{micro_batch_size}/{name}"]
                np.testing.assert_allclose(found, one[f"0/{name}"], rtol=0, atol=1e-5)


def test_a_batch_that_does_not_divide_by_the_replicas_is_refused():
    two = types.SimpleNamespace(num_replicas_in_sync=2)
    check_divides(8, two)
    with pytest.raises(InputError, match="A batch of 9 images does not divide by 2 replicas"):
        check_divides(9, two)


if __name__ == "__main__":
    train(*sys.argv[1:])
