"""What Keras' `fit` on two replicas is refused with: by name the message, as JSON. One case a process."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from tests.programs import make_two_cpus
from tfrank import losses


def message(case: str) -> str:
    """The error of a `fit` that XLA is to compile ("xla"), or whose last batch has one row ("last")."""
    make_two_cpus()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
        model.compile("sgd", loss=losses.get("pnp"), jit_compile=case == "xla")
    rows = np.random.default_rng(0).normal(size=(9, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((rows, np.arange(9) // 3)).batch(4)
    try:
        model.fit(data, verbose=0)
    except (ValueError, tf.errors.OpError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    print(json.dumps(message(sys.argv[1])))
