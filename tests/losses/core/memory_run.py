"""Prints the memory that many batch sizes, or many hyper-parameters, take, in a process of its own.

In a process that has run other losses, fragments of their memory would be counted too.
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow as tf

from tests.losses import value_and_gradient
from tfrank import losses
from tfrank.losses.core import padding


def held_memory():
    """MB of this process, and pieces of memory, of which the system bounds the number (Linux)."""
    statm, maps = (pathlib.Path("/proc/self", name).read_text() for name in ("statm", "maps"))
    return np.array([int(statm.split()[1]) * 4096 / 1e6, maps.count("\n")])


def batch_of(size):
    """Labels of four each, but for the last, and embeddings."""
    return np.arange(size) // 4, np.random.default_rng(size).normal(size=(size, 8)).astype("float32")


def taken_by_sizes(name):
    """What 63 batch sizes take beyond those that have a program, in a traced function and outside."""
    loss = losses.get(name)
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 8])]
    traced = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature)

    def step(size):
        for function in (traced, lambda *batch: value_and_gradient(loss, *batch)):
            function(*map(tf.constant, batch_of(size)))

    for size in padding.SIZES[:8]:
        step(size)
    before = held_memory()
    for size in range(2, 128, 2):
        step(size)
    return held_memory() - before


def taken_by_values():
    """What 300 temperatures and alphas take beyond ten."""
    batch = tf.constant(batch_of(4)[1])
    values = set()
    for number in range(300):
        if number == 10:
            before = held_memory()
        loss = losses.get("pnp", alpha=1 + number / 100, temperature=0.01 + number / 1000)
        values.add(float(loss([0, 1, 0, 1], batch)))
    assert len(values) > 270
    return held_memory() - before


def main(cause):
    """`cause` is the name of a loss that takes many batch sizes, or "values"."""
    taken = taken_by_values() if cause == "values" else taken_by_sizes(cause)
    print(json.dumps(taken.tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
