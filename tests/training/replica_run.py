"""A few steps of the real training, on one device or two, in a process of its own.

    python -m tests.training.replica_run STRATEGY FILE.npz

Writes the weights and the losses of the steps to the file.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

BATCH, STEPS = 32, 2


def main(strategy, path):
    if strategy == "mirrored":
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    from tfrank import losses
    from tfrank.models.backbones import convnet
    from tfrank.models.preprocessing import preprocess
    from tfrank.training.step import build_step
    from tfrank.training.strategy import build_strategy

    # In float32 an activation that is zero but for rounding may pass a ReLU on two devices and not on
    # one; the gradients then differ by more than rounding, and rightly so.
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(0)
    images = tf.image.resize(sklearn.datasets.load_digits().images[..., None] * (255 / 16), [28, 28])
    images = tf.cast(tf.repeat(images, 3, axis=-1), tf.uint8)
    labels = sklearn.datasets.load_digits().target
    strategy = build_strategy(strategy, BATCH)
    with strategy.scope():
        pixels = keras.Input([28, 28, 3])
        features = convnet(preprocess(pixels, "inverted_grey"), blocks=4, filters=16)
        model = keras.Model(pixels, keras.layers.Dense(64)(keras.layers.Flatten()(features)))
        # Not Adam, which turns the rounding of a gradient near zero into a whole step.
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    before = {f"before/{v.path}": v.numpy() for v in model.trainable_variables}
    step = build_step(model, losses.get("pnp"), optimizer, strategy=strategy, l2=4e-4)
    batches = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}).batch(BATCH).take(STEPS)
    losses = [float(step(batch).loss) for batch in strategy.experimental_distribute_dataset(batches)]
    after = {f"after/{v.path}": v.numpy() for v in model.variables}
    np.savez(path, losses=losses, **before, **after)


if __name__ == "__main__":
    main(*sys.argv[1:])
