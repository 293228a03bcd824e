"""A few steps of the real training, on one device or two, in a process of its own.

    python -m tests.training.replica_run STRATEGY FOLDER LOSS

Writes the weights to FOLDER/weights.npz and the losses to FOLDER/run/training.csv.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf


def main(strategy, folder, loss):
    if strategy == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from configs import digits
    from tfrank import experiment

    config = digits.get_config(loss)
    config.train.strategy = strategy
    config.train.steps = 4
    config.train.log_every = 1
    config.data.image_size = 28
    config.data.classes_per_batch = 8
    config.data.examples_per_class = 2
    config.model.blocks = 4
    workdir = os.path.join(folder, "run")
    data = experiment.build_data(config, workdir)
    training = experiment.build_training(config, workdir)
    experiment.train(config, training, data)
    weights = {v.path: v.numpy() for v in training.model.variables}
    np.savez(os.path.join(folder, "weights.npz"), **weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
