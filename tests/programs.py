"""Programs of their own, for tests: a process may hold one MirroredStrategy."""

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.command_lines import Ended, run


def printed_json(*arguments: str, run: Callable[..., Ended] = run) -> Any:
    """The JSON in the last line that `python ARGUMENTS` prints, once it has ended well."""
    ended = run(*arguments)
    assert ended.status == 0, ended.errors[-3000:]
    return json.loads(ended.output.splitlines()[-1])


def make_two_cpus() -> None:
    """Splits the CPU into two logical devices; before TensorFlow is asked for any."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
