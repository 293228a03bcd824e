"""The estimate of memory, against bytes counted by hand."""

import keras
import pytest

from tfrank.models.blocks import _recomputed
from tfrank.training.estimate import memory_estimate

KERNELS = (3 * 3 * 3 * 4 + 4) + (4 * 5 + 5)  # Of the convolution and the dense layer, with biases.
BATCH_NORM = 4  # Each of scale, offset, moving mean and moving variance.
TRAINABLE = KERNELS + 2 * BATCH_NORM
SEED = 2 * 8  # The state of dropout, two integers of 8 bytes.
PIXELS = 8 * 8 * 3
# The outputs of input, convolution, batch norm, pooling, dropout and dense layer.
ACTIVATIONS = PIXELS + 2 * 6 * 6 * 4 + 4 + 4 + 5
# What any Keras optimizer keeps: the number of steps, 8 bytes, and the learning rate.
COUNTERS = 8 + 4


def network(dtype=None):
    layers = keras.layers
    pixels = keras.Input([8, 8, 3])
    x = layers.Conv2D(4, 3, dtype=dtype)(pixels)
    x = layers.GlobalAveragePooling2D(dtype=dtype)(layers.BatchNormalization(dtype=dtype)(x))
    return keras.Model(pixels, layers.Dense(5, dtype=dtype)(layers.Dropout(0.1, dtype=dtype)(x)))


def estimate(optimizer=None, dtype=None, batch_size=12, **options):
    model, optimizer = network(dtype), optimizer or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return memory_estimate(model, optimizer, batch_size=batch_size, **options)


def test_every_part_of_a_small_network_is_counted():
    assert estimate() == {
        "weights": 4 * (TRAINABLE + 2 * BATCH_NORM) + SEED,
        "gradients": 4 * TRAINABLE,
        "optimizer": 2 * 4 * TRAINABLE + COUNTERS,
        # Each twice, of twelve images, in float32.
        "activations": 2 * 12 * ACTIVATIONS * 4,
        # As bytes, and as float32.
        "images": 12 * PIXELS * (1 + 4),
        "similarities": 4 * 12 * 12 * 4,
    }


@pytest.mark.parametrize(
    "optimizer, size",
    [
        (keras.optimizers.SGD(), COUNTERS),
        (keras.optimizers.SGD(momentum=0.9), COUNTERS + 4 * TRAINABLE),
        # Mixed precision has counters of its own, a step counter and a scale.
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), 2 * COUNTERS + 8 + 4),
    ],
    ids=["sgd", "momentum", "scaled"],
)
def test_an_optimizer_takes_what_its_slots_take(optimizer, size):
    assert estimate(optimizer)["optimizer"] == size


def test_frozen_weights_have_no_gradient():
    model, optimizer = network(), keras.optimizers.Adam()
    model.layers[1].trainable = False
    optimizer.build(model.trainable_variables)
    bytes_of = memory_estimate(model, optimizer, batch_size=12)
    assert bytes_of["gradients"] == 4 * (TRAINABLE - (3 * 3 * 3 * 4 + 4))
    assert bytes_of["weights"] == estimate()["weights"]


def test_micro_batches_take_their_part_of_activations_and_leave_the_images_on_the_host():
    plain, in_stages = estimate(), estimate(micro_batch_size=3)
    assert in_stages["activations"] == plain["activations"] / 4
    assert in_stages["images"] == 3 * PIXELS * 4
    for name in ("weights", "gradients", "optimizer", "similarities"):
        assert in_stages[name] == plain[name]


def test_with_micro_batches_only_similarities_grow_with_the_batch():
    one, two = (estimate(micro_batch_size=3, batch_size=size) for size in (12, 24))
    assert two == {**one, "similarities": 4 * one["similarities"]}


def test_replicas_share_the_batch_and_each_scores_its_queries_against_all_of_it():
    one, three = estimate(), estimate(replicas=3)
    for name in ("activations", "images", "similarities"):
        assert three[name] == one[name] / 3
    for name in ("weights", "gradients", "optimizer"):
        assert three[name] == one[name]


class Block(keras.layers.Layer):
    """A layer that consists of others."""

    def build(self, shape):
        self.parts = [keras.layers.Dense(7, "relu"), keras.layers.Dense(5, "relu")]
        self.parts[0].build(shape)
        self.parts[1].build([None, 7])

    def call(self, inputs):
        return self.parts[1](self.parts[0](inputs))


@pytest.mark.parametrize("recomputed, numbers", [(False, 4 + 7 + 5), (True, 4 + 5)])
def test_of_layers_in_a_layer_the_tensors_that_the_gradient_reads_are_counted(recomputed, numbers):
    inputs, block = keras.Input([8, 8, 3]), Block()
    pooled = keras.layers.GlobalAveragePooling2D()(inputs)
    x = keras.layers.Dense(2)(block(keras.layers.Dense(4)(pooled)))
    model, optimizer = keras.Model(inputs, x), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    if recomputed:
        block.call = _recomputed(block.call)
    # And what the first dense layer reads, the three means.
    assert memory_estimate(model, optimizer, batch_size=12)["activations"] == 4 * 12 * (3 + numbers)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_halves_the_activations_of_its_layers_only(dtype):
    """All but the input's, which has no precision of its own here."""
    full, mixed = estimate(), estimate(dtype=dtype)
    assert mixed == {**full, "activations": 2 * 12 * (4 * PIXELS + 2 * (ACTIVATIONS - PIXELS))}


def test_a_model_in_a_model_counts_once():
    """The outputs of the inner model are those of its last layer."""
    inner = network()
    pixels = keras.Input([8, 8, 3])
    model, optimizer = keras.Model(pixels, inner(pixels)), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    bytes_of = memory_estimate(model, optimizer, batch_size=12)
    assert bytes_of == {**estimate(), "activations": 2 * 12 * (ACTIVATIONS + PIXELS) * 4}
