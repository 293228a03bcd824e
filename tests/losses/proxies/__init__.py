"""What the tests of losses with proxies share: every loss by its settings, a batch, a training model."""

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference import mean
from tests.reference import proxies as reference
from tfrank import losses
from tfrank.losses import proxies

# Beside the defaults. A margin of 1.5 puts many rows beyond theta + m = pi.
OPTIONS = {
    "proxy_nca": [{"temperature": 1.0}],
    "proxy_nca_pp": [{"temperature": 1.0}],
    "soft_triple": [
        {"proxies_per_class": 1, "margin": 0.2},
        {"proxies_per_class": 3, "gamma": 1.0, "scale": 5.0, "margin": 0.0},
    ],
    "normalized_softmax": [{"temperature": 1.0}],
    "cos_face": [{"scale": 8.0, "margin": 0.0}],
    "arc_face": [
        {"scale": 8.0, "margin": 0.0},
        {"scale": 8.0, "margin": 1.5},
        {"scale": 8.0, "proxies_per_class": 3},
    ],
    "proxy_anchor": [{"alpha": 4.0, "delta": 0.3}],
}

CLASSES = [-5, 1, 2, 3, 7]
LABELS = np.array([3, 1, 3, 2, 1, 3, -5, 2, 3])  # No row of class 7, and one row of class -5.
EMBEDDINGS = np.random.default_rng(0).normal(size=(len(LABELS), 4))


class Recipe(NamedTuple):
    """A loss by its name and settings."""

    name: str
    settings: dict[str, Any]

    def loss(self, labels=CLASSES, **more):
        return losses.get(self.name, labels=labels, **self.settings, **more)

    def oracle(self, labels, embeddings, rows, classes=CLASSES):
        """The loss of each embedding by the paper's formula in plain loops, `rows` being the proxies."""
        return reference.losses(self.name, classes, labels, embeddings, rows, **self.settings)

    def mean(self, labels, embeddings, rows, weights=None):
        return mean(self.oracle(labels, embeddings, rows), [True] * len(labels), weights)

    def __str__(self):
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.settings.items())])


DEFAULTS = [Recipe(name, {}) for name in proxies.PROXY_LOSSES]
every_loss = pytest.mark.parametrize("recipe", DEFAULTS, ids=str)
# Without penalty and with: for what the losses share.
QUICK = ("proxy_nca", "soft_triple")
one_of_each_kind = pytest.mark.parametrize("recipe", [Recipe(name, {}) for name in QUICK], ids=str)
every_loss_and_option = pytest.mark.parametrize(
    "recipe",
    DEFAULTS + [Recipe(name, option) for name, options in OPTIONS.items() for option in options],
    ids=str,
)


def value_and_gradients(loss, layer, labels, embeddings, sample_weight=None):
    """The value, and its gradients with respect to the embeddings and to the proxies of the layer."""
    embeddings = tf.convert_to_tensor(embeddings)
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        value = loss(labels, layer(embeddings), sample_weight)
    return value, *tape.gradient(value, [embeddings, layer.proxies.value])


def slopes(value, rows, step=1e-6):
    """Central differences of `value(rows)`."""
    result = np.zeros(np.shape(rows))
    for place in np.ndindex(result.shape):
        move = np.zeros_like(result)
        move[place] = step
        result[place] = (value(rows + move) - value(rows - move)) / (2 * step)
    return result


def training_model(loss, features=6, dim=4):
    """A small embedding model, and that model with proxies behind it, the same weights every time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([features]), keras.layers.Dense(dim)])
    return model, keras.Sequential([model, loss.proxies()])
