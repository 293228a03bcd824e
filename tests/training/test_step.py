"""The training step, and the strategy it runs under."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank import SmoothAPLoss
from tfrank.checks import InputError
from tfrank.training.step import build_step
from tfrank.training.strategy import build_strategy

BATCH = {
    "image": tf.random.stateless_uniform([6, 2, 2, 3], [0, 1], 0, 255, tf.int32),
    "label": tf.constant([0, 0, 1, 1, 2, 2], tf.int64),
}


def linear_model(regularizer=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input([2, 2, 3]),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(3, kernel_regularizer=regularizer),
        ]
    )


def one_step(model, l2=0.0):
    optimizer = keras.optimizers.SGD(0.5)
    step = build_step(model, SmoothAPLoss(0.1), optimizer, strategy=tf.distribute.get_strategy(), l2=l2)
    return float(step(BATCH).loss), [w.numpy() for w in model.trainable_variables]


def expected_step(model, decay):
    """w - rate (dL/dw + decay w), with the gradient of the plain loss."""
    with tf.GradientTape() as tape:
        loss = SmoothAPLoss(0.1)(BATCH["label"], model(tf.cast(BATCH["image"], tf.float32)))
    gradients = tape.gradient(loss, model.trainable_variables)
    return float(loss), [
        w.numpy() - 0.5 * (g.numpy() + d * w.numpy())
        for w, g, d in zip(model.trainable_variables, gradients, decay)
    ]


@pytest.mark.parametrize(
    "regularizer, l2, decay",
    [
        (None, 0.0, (0.0, 0.0)),
        (None, 0.3, (0.3, 0.3)),
        # Keras' regulariser is c |w|^2, of which the gradient is 2 c w.
        (keras.regularizers.L2(0.1), 0.0, (0.2, 0.0)),
        (keras.regularizers.L2(0.1), 0.3, (0.5, 0.3)),
    ],
)
def test_a_step_follows_the_gradient_and_decay_and_reports_the_bare_loss(regularizer, l2, decay):
    expected_loss, expected = expected_step(linear_model(regularizer), decay)
    loss, weights = one_step(linear_model(regularizer), l2)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for weight, wanted in zip(weights, expected):
        np.testing.assert_allclose(weight, wanted, rtol=1e-5, atol=1e-7)


def test_an_unknown_strategy_is_refused_with_the_likely_one():
    with pytest.raises(InputError, match=r"Received: strategy='mirored'. Did you mean \"mirrored\"\?"):
        build_strategy("mirored", 8)
