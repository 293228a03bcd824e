"""What the machine has to compute on."""

import tensorflow as tf


def gpu() -> str | None:
    """The name of the first GPU; None if there is none."""
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None
