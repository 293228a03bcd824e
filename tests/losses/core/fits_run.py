"""Prints the MB that a model and its training leave, in a process of its own (Linux)."""

import gc
import json
import sys

import keras
import numpy as np
import tensorflow as tf

from tests.losses.core.memory_run import held_memory
from tfrank import losses


class Plain(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_sum(tf.square(y_pred), axis=1)


def fit(make):
    random = np.random.default_rng(0)
    model = keras.Sequential([keras.Input([32]), keras.layers.Dense(16)])
    model.compile("adam", loss=make())
    model.fit(random.normal(size=(64, 32)), np.arange(64) // 4, batch_size=64, shuffle=False, verbose=0)


def main(name):
    """`name` is that of a loss, or "plain"."""

    def fits(number):
        for _ in range(number):
            fit(Plain if name == "plain" else lambda: losses.get(name))
        gc.collect()
        return held_memory()[0]

    before = fits(5)
    print(json.dumps((fits(20) - before) / 20))


if __name__ == "__main__":
    main(*sys.argv[1:])
