"""Embeddings over several scales against Pillow's resizing, for any sizes, traced once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tfrank.common.checks import InputError
from tfrank.evaluation.embed import embed
from tfrank.evaluation.postprocessing.multi_scale import multi_scale

RNG = np.random.default_rng(0)
SIZES = [(16, 16), (31, 20), (7, 40), (1, 3)]


def described(images):
    """The mean of each channel and of its squares and slopes: not the same at any two scales."""
    slopes = tf.abs(images[:, :, 1:] - images[:, :, :-1])
    parts = [images, tf.square(images) / 255, tf.pad(slopes, [[0, 0], [0, 0], [0, 1], [0, 0]])]
    return tf.reduce_mean(tf.concat(parts, axis=3), axis=[1, 2])


def images_of(height, width, count=2):
    return RNG.integers(0, 256, [count, height, width, 3]).astype(np.float32)


@pytest.mark.parametrize("scales", [(1.0, 2**-0.5, 0.5), (0.3,), (1.0,), (2**0.5, 1)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_sum_over_scales_is_that_of_images_resized_by_pillow(scales, size):
    images = images_of(*size)
    got = multi_scale(described, scales)(images)
    np.testing.assert_allclose(got, reference.multi_scale(described, images, scales), atol=2e-5)
    assert got.dtype == tf.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_by_hand_every_scale_counts_the_same_and_a_side_is_a_pixel_at_least():
    """The embedding is (width, height): (1, 0), (3, 4) and (1, 1) once normalised, added, normalised."""

    def sides(images):
        shape = tf.cast(tf.shape(images), tf.float32)
        return tf.repeat([[shape[2] - 1, shape[1] - 1]], len(images), axis=0)

    got = multi_scale(sides, (1, 0.5, 0.25, 0.01))(images_of(9, 7))
    # 9 x 7, 4 x 4 (halves go to the even side), 2 x 2, 1 x 1: the last is of norm 0, so it adds nothing.
    total = np.array([6 / 10, 8 / 10]) + 2 * np.array([0.5**0.5, 0.5**0.5])
    np.testing.assert_allclose(got, [total / np.linalg.norm(total)] * 2, atol=1e-6)


def test_it_is_traced_once_for_all_sizes_also_inside_a_function():
    traces = []

    def counted(images):
        traces.append(images.shape)
        return described(images)

    function = multi_scale(counted)
    outer = tf.function(function, input_signature=[tf.TensorSpec([None, None, None, 3])])
    for size in SIZES:
        images = images_of(*size, count=SIZES.index(size) + 1)
        np.testing.assert_allclose(function(images), outer(images), atol=1e-6)
    assert len(traces) == 3


def test_a_keras_model_of_any_size_is_embedded_over_scales():
    keras.utils.set_random_seed(0)
    images = keras.Input([None, None, 3])
    features = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    model = keras.Model(images, keras.layers.GlobalAveragePooling2D()(features))
    batches = [{"image": images_of(*size).astype(np.uint8), "label": [0, 1]} for size in SIZES]
    got, labels = embed(multi_scale(model, (1, 0.5)), batches)
    wanted = [reference.multi_scale(model, batch["image"], (1, 0.5)) for batch in batches]
    np.testing.assert_allclose(got, np.concatenate(wanted), atol=1e-5)
    assert labels.tolist() == [0, 1] * 4


@pytest.mark.parametrize("scales", [(), (1, 0), (-0.5,), (float("nan"),), "1", 0.5])
def test_scales_that_are_none_are_refused(scales):
    with pytest.raises(InputError, match="argument `scales`"):
        multi_scale(described, scales)
