"""Two replicas train the network of the Omniglot run as one device does. A process for each strategy."""

import subprocess
import sys

import numpy as np
import pytest

from tests.training.runs import ROOT, logged_steps


def run(strategy, folder, loss):
    folder.mkdir()
    command = [sys.executable, "-m", "tests.training.replica_run", strategy, folder, loss]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["pnp", "smooth_ap"])
def test_two_replicas_train_a_convnet_with_batch_norm_as_one_device_does(loss, tmp_path):
    for strategy in ("one_device", "mirrored"):
        process = run(strategy, tmp_path / strategy, loss)
        assert process.returncode == 0, process.stderr
    one, two = (np.load(tmp_path / s / "weights.npz") for s in ("one_device", "mirrored"))
    assert one.files == two.files
    for name in one.files:
        # Of the whole variable: Adam turns the rounding of a gradient near zero into a step.
        difference = np.linalg.norm(one[name] - two[name]) / np.linalg.norm(one[name])
        assert difference < 1e-5, name
    losses = [
        [float(line.split(",")[1]) for line in logged_steps(tmp_path / s / "run")]
        for s in ("one_device", "mirrored")
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
def test_a_batch_that_does_not_divide_by_the_replicas_is_refused():
    code = (
        "import tensorflow as tf; cpu, = tf.config.list_physical_devices('CPU');"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2);"
        "from tfrank.training.strategy import build_strategy; build_strategy('mirrored', 9)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert "A batch of 9 images does not divide by 2 replicas" in process.stderr
