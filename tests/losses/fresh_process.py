"""Trains every saved model of a folder one step further, in a process of its own.

python -m tests.losses.fresh_process FOLDER
"""

import pathlib
import sys

import keras
import numpy as np

import tfrank

FEATURES = np.random.default_rng(0).integers(-2, 3, size=(12, 6)).astype("float32")
LABELS = np.array([0, 1, 2] * 3 + [3, 4, 1])


def train_one_step(model):
    """The loss that `fit` logs for a step on the whole batch."""
    history = model.fit(FEATURES, LABELS, len(LABELS), shuffle=False, verbose=0)
    return history.history["loss"][0]


def main(folder):
    assert tfrank.LOSSES  # Importing tfrank is all that loading needs.
    for path in pathlib.Path(folder).glob("*.keras"):
        model = keras.models.load_model(path)
        train_one_step(model)
        np.savez(path.with_suffix(".npz"), *model.get_weights())


if __name__ == "__main__":
    main(sys.argv[1])
