"""The temperature of Smooth-AP: the approximation error (Fig. 4) and the share of pairs with a gradient (S7).

    python -m experiments.smooth_ap --source=images_background_small1.zip [--steps=200]

Trains the network of configs/omniglot.py, once for each temperature at 128 images a batch and once for each
batch size at temperature 0.01, and measures each batch before its step. Classes have 4 images in every batch.

Writes smooth_ap.csv, means of the last quarter of the steps, and smooth_ap.png.
"""

import copy
import os
import tempfile
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags
from matplotlib.figure import Figure

import tfrank
from experiments.runs import write_results
from tfrank.configs import omniglot
from tfrank.losses.metrics import ap_approximation_error, operating_region
from tfrank.run import datasets, experiment, settings
from tfrank.training.optimizers import build_optimizer

_SOURCE = flags.DEFINE_string("source", None, "Path of the Omniglot archive or folder.", required=True)
_STEPS = flags.DEFINE_integer("steps", 200, "Training steps of each run.", lower_bound=8)

TEMPERATURES = (1.0, 0.1, 0.01, 0.001)
CLASSES = (8, 16, 32, 64, 90)


class Curves(NamedTuple):
    """Of one run: the AP approximation error, and the share in the operating region, of each batch."""

    error: np.ndarray
    region: np.ndarray


def train(config, folder: str, temperature: float, classes: int) -> Curves:
    """Trains with Smooth-AP and measures the embeddings of each batch."""
    config = copy.deepcopy(config)
    config.data.classes_per_batch, config.train.steps = classes, _STEPS.value
    config = settings.resolved(config)
    data = datasets.build_data(config.data, folder, seed=config.seed)
    batches, _ = datasets.build_batches(config.data, data.train, _STEPS.value, seed=config.seed)
    model = experiment.build_model(config)
    loss = tfrank.SmoothAPLoss(temperature)
    optimizer = build_optimizer("adam", learning_rate=config.train.learning_rate)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            embeddings = model(images, training=True)
            value = loss(labels, embeddings)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
        unit = tf.math.l2_normalize(tf.stop_gradient(embeddings), axis=1)
        error, valid = ap_approximation_error(labels, unit, temperature=temperature)
        region, _ = operating_region(labels, unit, temperature=temperature, least_slope=0.005)
        return tf.reduce_mean(error[valid]), tf.reduce_mean(region)

    measured = [step(batch["image"], batch["label"]) for batch in batches(0)]
    return Curves(*np.float64(measured).T)


def figure(by_temperature: dict[float, Curves], by_size: dict[int, Curves]) -> Figure:
    """The error along training for each temperature, and the operating region against the batch size."""
    drawing = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = drawing.subplots(1, 2)
    for temperature, curves in by_temperature.items():
        left.plot(curves.error, label=f"temperature {temperature:g}", linewidth=1)
    left.set(xlabel="step", ylabel="AP approximation error", yscale="log")
    left.legend(fontsize=8)
    sizes = [4 * classes for classes in by_size]
    right.plot(sizes, [100 * last_quarter(curves.region) for curves in by_size.values()], "o-")
    right.set(xlabel="images in a batch", ylabel="pairs with a gradient in %", ylim=0)
    return drawing


def last_quarter(values: np.ndarray) -> float:
    return float(np.mean(values[-len(values) // 4 :]))


def main(_):
    config = omniglot.get_config("smooth_ap")
    config.data.source = _SOURCE.value
    runs = [(temperature, 32) for temperature in TEMPERATURES] + [(0.01, classes) for classes in CLASSES]
    found, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for temperature, classes in dict.fromkeys(runs):
            curves = found[temperature, classes] = train(config, folder, temperature, classes)
            rows.append(
                {
                    "temperature": temperature,
                    "batch": 4 * classes,
                    "AP approximation error": f"{last_quarter(curves.error):.5f}",
                    "operating region": f"{last_quarter(curves.region):.5f}",
                }
            )
            print(*rows[-1].values(), sep="  ", flush=True)
    by_temperature = {temperature: found[temperature, 32] for temperature in TEMPERATURES}
    by_size = {classes: found[0.01, classes] for classes in CLASSES}
    write_results("smooth_ap", rows, figure(by_temperature, by_size))


if __name__ == "__main__":
    app.run(main)
