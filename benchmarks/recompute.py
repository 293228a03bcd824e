"""Memory and time of a training step of vision transformers, with and without recomputed blocks.

    python -m benchmarks.recompute [--sizes=vit_small,dinov2_small,swin_tiny] [--batch=16]

A step is a forward and a backward pass of 224 x 224 images with random weights, in a process of its own.
Prints the peak memory of the process, and the median of five steps after the first.
"""

import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfrank.models import blocks, hub

_SIZES = flags.DEFINE_list("sizes", ["vit_small", "dinov2_small", "swin_tiny"], "Sizes of hub/....")
_BATCH = flags.DEFINE_integer("batch", 16, "Images of a batch.")
_ONE = flags.DEFINE_bool("one", False, "Measures in this process.")
_RECOMPUTE = flags.DEFINE_bool("recompute", False, "With --one: whether blocks are recomputed.")
IMAGE_SIZE, STEPS = 224, 5


def measure(size: str, recompute: bool) -> None:
    """Prints the peak memory of this process and the seconds of a step."""
    network = hub.hub_network(size, image_size=IMAGE_SIZE)
    if recompute:
        blocks.recompute_blocks(network)
    images = tf.random.stateless_normal([_BATCH.value, IMAGE_SIZE, IMAGE_SIZE, 3], [0, 0])
    variables = [variable.value for variable in network.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(network(images, training=True))
            value = tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs])
        return tape.gradient(value, variables, unconnected_gradients="zero")

    step()
    seconds = []
    for _ in range(STEPS):
        start = time.monotonic()
        step()
        seconds.append(time.monotonic() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    kind = "recomputed" if recompute else "kept"
    print(f"{size:16} {kind:12} {peak:6.2f} GB {np.median(seconds):6.2f} s", flush=True)


def main(_):
    if _ONE.value:
        return measure(_SIZES.value[0], _RECOMPUTE.value)
    for size in _SIZES.value:
        for recompute in (False, True):
            flags_of = [f"--sizes={size}", f"--batch={_BATCH.value}", "--one", f"--recompute={recompute}"]
            subprocess.run([sys.executable, "-m", "benchmarks.recompute", *flags_of], check=True)


if __name__ == "__main__":
    app.run(main)
