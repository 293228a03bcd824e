"""On which devices a model is trained."""

import tensorflow as tf

from tfrank import checks
from tfrank.checks import InputError


def build_strategy(name: str, batch_size: int) -> tf.distribute.Strategy:
    """The strategy of that name, for a global batch that divides by its replicas.

    Args:
        name: "one_device": TensorFlow's default, the first GPU or the CPU. "mirrored": all GPUs of this
            machine, or all logical CPUs where there is no GPU.
        batch_size: of all replicas together.
    """
    checks.one_of("strategy", name, ["one_device", "mirrored"])
    if name == "one_device":
        return tf.distribute.get_strategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if batch_size % len(devices):
        raise InputError(
            f"A batch of {batch_size} images does not divide by {len(devices)} replicas. Change"
            " classes_per_batch or examples_per_class."
        )
    return tf.distribute.MirroredStrategy([device.name for device in devices])
