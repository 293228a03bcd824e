"""Two replicas train the network of the Omniglot run as one device does. A process for each strategy."""

import numpy as np
import pytest

from tests.command_lines import run


def trained(strategy, path):
    ended = run("-m", "tests.training.replica_run", strategy, path)
    assert ended.status == 0, ended.errors
    return np.load(path)


@pytest.mark.slow
def test_two_replicas_train_a_convnet_with_batch_norm_as_one_device_does(tmp_path):
    one, two = (trained(name, tmp_path / f"{name}.npz") for name in ("one_device", "mirrored"))
    np.testing.assert_allclose(one["losses"], two["losses"], rtol=1e-9)
    for name in one.files:
        if name.startswith("before/"):
            after = name.replace("before/", "after/")
            update = one[after] - one[name]
            np.testing.assert_array_equal(one[name], two[name])
            assert np.linalg.norm(one[after] - two[after]) < 1e-9 * np.linalg.norm(update), name
        else:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-9, atol=1e-12, err_msg=name)
