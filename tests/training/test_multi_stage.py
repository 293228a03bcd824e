"""The step in stages takes the weights where the plain step takes them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses import KINDS
from tfrank import losses
from tfrank.common.checks import InputError
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


def small_network(*extra, dtype="float32"):
    """A smaller one, in a precision."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Rescaling(1 / 255, dtype=dtype), keras.layers.Flatten(dtype=dtype)]
    layers += [keras.layers.Dense(8, activation="tanh", dtype=dtype), *extra]
    return keras.Sequential([keras.Input([6, 6, 3]), *layers, keras.layers.Dense(5, dtype=dtype)])


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


@pytest.fixture
def float64():
    """For losses so steep that the rounding of float32 moves weights by more than a tolerance."""
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", KINDS)
def test_weights_are_those_of_the_plain_step_for_losses_of_every_kind(name):
    loss = losses.get(name)
    plain = train(network(frozen_batch_norm()), loss, 0)
    assert_same(train(network(frozen_batch_norm()), loss, MICRO_BATCH), plain, 1e-12)
    # Nothing agrees with nothing.
    kernel = network(frozen_batch_norm()).variables[0].numpy()
    assert np.abs(plain[1][0] - kernel).max() > 1e-5


def one_tape_over_micro_batches(model, loss, xla=False):
    """A step by one tape over the same micro-batches, whose activations it holds all at once."""
    optimizer = keras.optimizers.SGD(0.5)
    embed = tf.function(lambda images: model(images, training=True), jit_compile=xla)
    with tf.GradientTape() as tape:
        parts = tf.split(tf.cast(IMAGES, tf.float32), len(IMAGES) // MICRO_BATCH)
        value = loss(LABELS, tf.concat([embed(part) for part in parts], axis=0))
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


def test_what_cannot_be_drawn_again_fails_where_gradients_would_be_wrong():
    dropout = keras.layers.Lambda(lambda x: keras.random.dropout(x, 0.4))
    loss, model = losses.get("smooth_ap", temperature=0.1), network(dropout)
    before = [variable.numpy() for variable in model.variables]
    with pytest.raises(tf.errors.InvalidArgumentError, match="random numbers that it cannot draw again"):
        train(model, loss, MICRO_BATCH)
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable, value)


def test_xla_replays_its_own_random_numbers():
    """Which are others than without it."""
    loss = losses.get("smooth_ap", temperature=0.1)
    model = small_network(keras.layers.Dropout(0.4, seed=3))
    values = [one_tape_over_micro_batches(model, loss, xla=True) for _ in range(2)]
    wanted = values, [variable.numpy() for variable in model.variables]
    got = train(small_network(keras.layers.Dropout(0.4, seed=3)), loss, MICRO_BATCH, xla=True)
    assert_same(got, wanted, 1e-6)


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


@pytest.mark.parametrize("micro_batch_size", [slow(1), 5, slow(16), 40])
def test_micro_batches_may_have_any_size(micro_batch_size):
    """Of one image, with a smaller last one, of the whole batch, and larger than it."""
    loss = losses.get("smooth_ap", temperature=0.1)
    plain = train(small_network(), loss, 0)
    assert_same(train(small_network(), loss, micro_batch_size), plain, 1e-6)


def test_batches_may_have_any_size():
    """Also where TensorFlow does not know it."""
    loss = losses.get("smooth_ap", temperature=0.1)
    models, signature = (
        [],
        {"image": tf.TensorSpec([None, 6, 6, 3]), "label": tf.TensorSpec([None], tf.int64)},
    )
    for micro_batch_size in (0, MICRO_BATCH):
        model, optimizer = small_network(), keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        step = build_step(model, loss, optimizer, strategy=ONE_DEVICE, micro_batch_size=micro_batch_size)
        step = tf.function(step, input_signature=[signature])
        values = [float(step({"image": IMAGES[:n], "label": LABELS[:n]}).loss) for n in (16, 9, 3)]
        models.append((values, [variable.numpy() for variable in model.variables]))
    assert_same(*models, 3e-6)


@pytest.mark.parametrize("dtype, tolerance", [("mixed_bfloat16", 2e-2), ("mixed_float16", 2e-3)])
def test_mixed_precision_takes_the_plain_step_but_for_rounding(dtype, tolerance):
    """Far smaller loss scales would lose gradients, and one taken off wrongly would show."""
    loss = losses.get("smooth_ap", temperature=0.1)

    def update(micro_batch_size):
        optimizer = keras.optimizers.SGD(0.5)
        if dtype == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**12)
        after = train(small_network(dtype=dtype), loss, micro_batch_size, optimizer=optimizer)[1]
        before = [variable.numpy() for variable in small_network(dtype=dtype).variables]
        return np.concatenate([np.ravel(now - start) for now, start in zip(after, before)])

    plain, in_stages = update(0), update(MICRO_BATCH)
    assert np.linalg.norm(in_stages - plain) < tolerance * np.linalg.norm(plain)
    assert np.linalg.norm(plain) > 1e-2


class Spare(keras.layers.Layer):
    """Has a weight that it does not use."""

    def build(self, shape):
        self.spare = self.add_weight(shape=[2], name="spare")

    def call(self, x):
        return x


def test_weights_that_do_not_reach_the_loss_or_are_frozen_stay():
    model = network(frozen_batch_norm(), Spare(), outputs=2)
    part = losses.get("smooth_ap", temperature=0.1)
    before = [variable.numpy() for variable in model.variables]
    _, after = train(model, lambda labels, outputs: part(labels, outputs[0]), MICRO_BATCH)
    moved = {v.path for v, old, new in zip(model.variables, before, after) if np.abs(new - old).max() > 0}
    [used, unused] = [layer.kernel.path for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    assert used in moved and unused not in moved
    assert not any("batch_norm" in path or "spare" in path for path in moved)


def test_a_loss_of_activations_is_refused():
    with pytest.raises(InputError, match="A layer adds a loss of its activations"):
        train(network(keras.layers.ActivityRegularization(0.1)), losses.get("pnp"), MICRO_BATCH)
