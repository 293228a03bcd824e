"""Prints, as JSON, the loss of several labels and its gradient on one device and on two uneven replicas.

A program of its own: a process may hold one MirroredStrategy, see `test_multi_label_sup_con.py`.
"""

import json

import numpy as np
import tensorflow as tf

from tfrank import MultiLabelSupConLoss

TAGS = (np.random.default_rng(0).uniform(size=(7, 3)) < 0.5).astype("float32")
ROWS = np.random.default_rng(1).normal(size=(7, 4))
WEIGHTS = np.linspace(0.5, 2, 7)
LOSS = MultiLabelSupConLoss(0.2)


def value_and_gradient(tags, rows, weights):
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = LOSS(tags, rows, weights)
    return value, tape.gradient(value, rows)


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def share(array):
        parts = [tf.constant(array[:4]), tf.constant(array[4:])]
        own = strategy.experimental_distribute_values_from_function
        return own(lambda context: parts[context.replica_id_in_sync_group])

    batch = (TAGS, ROWS, WEIGHTS)
    run = tf.function(lambda *parts: strategy.run(value_and_gradient, parts), autograph=False)
    values, gradients = run(*map(share, batch))
    value, gradient = value_and_gradient(*map(tf.constant, batch))
    local = strategy.experimental_local_results
    two = {
        "value": float(sum(local(values))),
        "gradient": np.concatenate([part.numpy() for part in local(gradients)]).tolist(),
    }
    print(json.dumps({"one": {"value": float(value), "gradient": gradient.numpy().tolist()}, "two": two}))


if __name__ == "__main__":
    main()
