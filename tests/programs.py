"""Programs of their own, for tests: a process may hold one MirroredStrategy."""

import json
import pathlib
import subprocess
import sys
from typing import Any

import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[1]


def printed_json(*arguments: str) -> Any:
    """The JSON in the last line that `python ARGUMENTS` prints, once it has ended well."""
    process = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def make_two_cpus() -> None:
    """Splits the CPU into two logical devices; before TensorFlow is asked for any."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
