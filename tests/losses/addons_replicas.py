"""Prints, as JSON, training steps of TensorFlow Addons' losses on one device and on two replicas.

    python -m tests.losses.addons_replicas

A program of its own, as `replica_cases`, whose batches and steps it takes.
"""

import itertools
import json

import keras
import numpy as np
import tensorflow as tf

from tests.losses.replica_cases import BATCHES, KERNEL, LEARNING_RATE, ROWS, fit_step, run_step
from tests.programs import make_two_cpus
from tfrank import losses

LABELS = {batch: labels for batch, (labels, _) in BATCHES.items() if batch != "unequal sample weights"}


def _cases():
    """The first loss in both ways on all batches; the others where one replica has no valid query."""
    for number, name in enumerate(losses.ADDONS):
        for way, batch in itertools.product(("step", "fit"), LABELS):
            # Keras' fit itself cannot begin with uneven replicas.
            if (way, batch) == ("fit", "uneven replicas"):
                continue
            if not number or (way, batch) == ("step", "a replica without valid queries"):
                yield name, way, batch


CASES = list(_cases())


def stepper(strategy, name, way):
    """A function of labels that takes an SGD step from KERNEL: the loss and the update."""
    loss = losses.get(name)
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
        model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
        model.optimizer.build(model.trainable_variables)
    loss.iteration = model.optimizer.iterations
    step = fit_step(model) if way == "fit" else run_step(model, loss, strategy)

    def step_from_kernel(labels):
        model.set_weights([KERNEL])
        value = step(ROWS[: len(labels)], np.array(labels, "int64"))
        return {"loss": value, "update": (model.get_weights()[0] - KERNEL).tolist()}

    return step_from_kernel


def main():
    make_two_cpus()
    strategies = {
        "one device": tf.distribute.get_strategy(),
        "two replicas": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }
    results = {}
    for setting, cases in itertools.groupby(CASES, key=lambda case: case[:2]):
        steppers = {device: stepper(strategy, *setting) for device, strategy in strategies.items()}
        for case in cases:
            labels = LABELS[case[-1]]
            results[", ".join(case)] = {device: step(labels) for device, step in steppers.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
