"""The step in stages takes the weights where the plain step takes them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank import losses
from tfrank.checks import InputError
from tfrank.training.step import build_step

MICRO_BATCH = 4
IMAGES = np.random.default_rng(0).integers(0, 255, (16, 6, 6, 3)).astype("uint8")
LABELS = np.random.default_rng(1).integers(0, 5, 16)
ONE_DEVICE = tf.distribute.get_strategy()


def network(*extra, outputs=1, regularizer=None):
    """A small network with `extra` layers in it, the same weights every time."""
    keras.utils.set_random_seed(0)
    pixels = keras.Input([6, 6, 3])
    x = keras.layers.Rescaling(1 / 255)(pixels)
    x = keras.layers.Conv2D(4, 3, kernel_regularizer=regularizer)(x)
    for layer in extra:
        x = layer(x)
    x = keras.layers.Flatten()(x)
    embeddings = [keras.layers.Dense(5)(x) for _ in range(outputs)]
    return keras.Model(pixels, embeddings if outputs > 1 else embeddings[0])


def train(model, loss, micro_batch_size, steps=2, optimizer=None, **options):
    """Losses of some steps, and all variables after them."""
    optimizer = optimizer or keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    step = build_step(
        model, loss, optimizer, strategy=ONE_DEVICE, micro_batch_size=micro_batch_size, **options
    )
    values = [float(step({"image": IMAGES, "label": LABELS}).loss) for _ in range(steps)]
    return values, [variable.numpy() for variable in model.variables]


def assert_same(got, wanted, tolerance):
    np.testing.assert_allclose(got[0], wanted[0], rtol=tolerance)
    for one, other in zip(got[1], wanted[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def frozen_batch_norm():
    layer = keras.layers.BatchNormalization()
    layer.trainable = False
    return layer


@pytest.mark.parametrize("name", losses.LOSSES)
def test_weights_are_those_of_the_plain_step_for_every_loss(name):
    loss = losses.get(name)
    plain = train(network(frozen_batch_norm()), loss, 0)
    assert_same(train(network(frozen_batch_norm()), loss, MICRO_BATCH), plain, 1e-6)
    # Nothing agrees with nothing.
    kernel = network(frozen_batch_norm()).variables[0].numpy()
    assert np.abs(plain[1][0] - kernel).max() > 1e-5


def one_tape_over_micro_batches(model, loss):
    """A step by one tape over the same micro-batches, whose activations it holds all at once."""
    optimizer = keras.optimizers.SGD(0.5)
    with tf.GradientTape() as tape:
        parts = tf.split(tf.cast(IMAGES, tf.float32), len(IMAGES) // MICRO_BATCH)
        value = loss(LABELS, tf.concat([model(part, training=True) for part in parts], axis=0))
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
    return float(value)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [keras.layers.Dropout(0.4, seed=3)],
        lambda: [keras.layers.BatchNormalization(momentum=0.5)],
        lambda: [keras.layers.RandomFlip(seed=4), keras.layers.GaussianNoise(0.1, seed=5)],
        lambda: [keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.4, seed=3)],
    ],
    ids=["dropout", "batch norm in training mode", "augmentation", "both"],
)
def test_what_is_random_or_has_a_state_is_replayed_exactly(layers):
    loss = losses.get("smooth_ap", temperature=0.1)
    model = network(*layers())
    values = [one_tape_over_micro_batches(model, loss) for _ in range(2)]
    wanted = values, [variable.numpy() for variable in model.variables]
    assert_same(train(network(*layers()), loss, MICRO_BATCH), wanted, 1e-6)


def test_weight_decay_and_regularisers_are_counted_once():
    loss = losses.get("smooth_ap", temperature=0.1)

    def regularised():
        return network(regularizer=keras.regularizers.L2(0.1))

    plain = train(regularised(), loss, 0, l2=0.3)
    assert_same(train(regularised(), loss, MICRO_BATCH, l2=0.3), plain, 1e-6)
    without = train(network(), loss, 0)
    assert np.abs(plain[1][0] - without[1][0]).max() > 1e-3


def test_a_model_may_have_several_embeddings():
    part = losses.get("smooth_ap", temperature=0.1)

    def loss(labels, embeddings):
        return tf.add_n([part(labels, output) for output in embeddings])

    plain = train(network(outputs=3), loss, 0)
    assert_same(train(network(outputs=3), loss, MICRO_BATCH), plain, 1e-6)


def test_the_loss_scale_of_mixed_precision_is_taken_off_once():
    loss = losses.get("smooth_ap", temperature=0.1)

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**10)

    plain = train(network(), loss, 0, optimizer=scaled())
    assert_same(train(network(), loss, MICRO_BATCH, optimizer=scaled()), plain, 1e-6)
    assert_same(plain, train(network(), loss, 0), 1e-6)


def test_the_last_micro_batch_may_be_smaller():
    loss = losses.get("smooth_ap", temperature=0.1)
    assert_same(train(network(), loss, 5), train(network(), loss, 0), 1e-6)


def test_a_loss_of_activations_is_refused():
    with pytest.raises(InputError, match="A layer adds a loss of its activations"):
        train(network(keras.layers.ActivityRegularization(0.1)), losses.get("pnp"), MICRO_BATCH)
