"""Prints, as JSON, what fit and evaluate log of every metric on one device and on two replicas.

    python -m tests.losses.metric_replicas

A program of its own: a process may hold one MirroredStrategy, see `test_metrics.py`.
"""

import json
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tests.programs import make_two_cpus
from tfrank import losses, metrics

# Settings to try beside the defaults.
SETTINGS = {
    "APApproximationError": [{"temperature": 0.1}, {"temperature": 1.0}],
    "OperatingRegion": [
        {"temperature": 0.1},
        {"temperature": 1.0},
        {"temperature": 100.0},
        {"temperature": 100.0, "least_slope": 0.002499},
        {"least_slope": 5.0},
    ],
}


class Recipe(NamedTuple):
    """A metric by its class's name and settings."""

    metric: str
    settings: dict[str, Any]

    def make(self, prefix=""):
        return getattr(metrics, self.metric)(**self.settings, name=prefix + str(self))

    def __str__(self):
        return "-".join([self.metric, *(f"{key}_{value}" for key, value in self.settings.items())])


METRICS = sorted(
    name
    for name, value in vars(metrics).items()
    if isinstance(value, type) and issubclass(value, metrics.BatchMetric) and value != metrics.BatchMetric
)
RECIPES = [Recipe(name, settings) for name in METRICS for settings in [{}, *SETTINGS.get(name, [])]]
IN_MODELS = [Recipe(name, SETTINGS.get(name, [{}])[0]) for name in METRICS]

# Two batches, the second one smaller. Classes lie on both replicas, which have four rows and two of them.
BATCH = 8
LABELS = np.array([0, 1, 2, 3, 0, 1, 0, 7, 4, 5, 4, 5])
WEIGHTS = np.linspace(0, 2, len(LABELS))
ROWS = np.random.default_rng(19).normal(size=(len(LABELS), 6)).astype("float32")
KERNEL = np.random.default_rng(1).normal(size=(6, 3)).astype("float32")


def logs(strategy, batch_size):
    """What fit and evaluate log; weights stay as they are, so that both see the same embeddings."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(3, use_bias=False)])
        model.compile(
            keras.optimizers.SGD(0.0),
            losses.get("pnp"),
            metrics=[recipe.make() for recipe in IN_MODELS],
            weighted_metrics=[recipe.make("weighted_") for recipe in IN_MODELS],
        )
    model.set_weights([KERNEL])
    history = model.fit(ROWS, LABELS, batch_size, sample_weight=WEIGHTS, shuffle=False, verbose=0).history
    evaluated = model.evaluate(ROWS, LABELS, batch_size, sample_weight=WEIGHTS, return_dict=True, verbose=0)
    return {"fit": {name: value for name, [value] in history.items()}, "evaluate": evaluated}


def main():
    make_two_cpus()
    one, two = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = {
        "one device": logs(one, BATCH),
        "two replicas": logs(two, BATCH),
        "half batches": logs(one, BATCH // 2),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
