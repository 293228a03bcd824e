"""The poolings against loops over their definitions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.models.pooling import MODES, RMAC, GeM, InnerAveragePooling2D, pool, rmac_regions

MAPS = np.random.default_rng(0).normal(size=[2, 4, 5, 3])


def gem_by_hand(maps, p, smallest=1e-6):
    batch, height, width, channels = maps.shape
    result = np.zeros([batch, channels])
    for b in range(batch):
        for c in range(channels):
            total = 0.0
            for i in range(height):
                for j in range(width):
                    total += max(maps[b, i, j, c], smallest) ** p
            result[b, c] = (total / (height * width)) ** (1 / p)
    return result


def rmac_by_hand(maps, regions):
    batch, _, _, channels = maps.shape
    result = np.zeros([batch, channels])
    for b in range(batch):
        for top, left, side in regions:
            vector = np.array(
                [
                    max(maps[b, i, j, c] for i in range(top, top + side) for j in range(left, left + side))
                    for c in range(channels)
                ]
            )
            result[b] += vector / np.sqrt(sum(vector**2))
    return result


@pytest.mark.parametrize("p", [0.5, 1.0, 3.0, 8.0])
def test_gem_is_the_generalized_mean(p):
    np.testing.assert_allclose(GeM(initial_p=p, dtype="float64")(MAPS), gem_by_hand(MAPS, p), rtol=1e-12)


def test_gem_of_1_is_the_average_and_of_much_the_maximum():
    positive = np.abs(MAPS) + 0.1
    np.testing.assert_allclose(GeM(1.0, dtype="float64")(positive), positive.mean((1, 2)), rtol=1e-12)
    np.testing.assert_allclose(GeM(1e4, dtype="float64")(positive), positive.max((1, 2)), rtol=1e-3)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_the_gradients_of_gem_are_its_slopes(p):
    positive, layer = tf.constant(np.abs(MAPS) + 0.1), GeM(initial_p=p, dtype="float64")
    layer.build(positive.shape)
    weights = np.random.default_rng(1).normal(size=[2, 3])
    with tf.GradientTape() as tape:
        tape.watch(positive)
        value = tf.reduce_sum(weights * layer(positive))
    to_p, to_maps = tape.gradient(value, [layer.p.value, positive])

    def at(maps, p):
        return np.sum(weights * gem_by_hand(maps, p))

    step = 1e-6
    slope = (at(positive.numpy(), p + step) - at(positive.numpy(), p - step)) / (2 * step)
    np.testing.assert_allclose(to_p, slope, rtol=1e-7)
    assert abs(slope) > 1e-3
    for place in [(0, 0, 0, 0), (1, 3, 4, 2), (0, 2, 1, 1)]:
        change = np.zeros(MAPS.shape)
        change[place] = step
        slope = (at(positive.numpy() + change, p) - at(positive.numpy() - change, p)) / (2 * step)
        np.testing.assert_allclose(to_maps[place], slope, rtol=1e-6)


@pytest.mark.parametrize("p", [3.0, 30.0])
def test_gem_is_finite_where_channels_are_dead_or_strong(p):
    maps, layer = np.zeros([2, 3, 3, 2], "float32"), GeM(initial_p=p)
    maps[1, ..., 1] = 1e6
    maps = tf.constant(maps)
    layer.build(maps.shape)
    with tf.GradientTape() as tape:
        tape.watch(maps)
        pooled = layer(maps)
        value = tf.reduce_sum(pooled)
    np.testing.assert_allclose(pooled, [[1e-6, 1e-6], [1e-6, 1e6]], rtol=1e-5)
    assert all(np.all(np.isfinite(gradient)) for gradient in tape.gradient(value, [layer.p.value, maps]))


def test_the_power_of_gem_is_trained_and_found_by_its_path():
    images = keras.Input([4, 4, 2])
    model = keras.Model(images, pool(images, "gem"))
    assert [variable.path for variable in model.trainable_variables] == ["gem/p"]


def test_regions_of_a_square_map_are_1_4_and_9():
    regions = rmac_regions(7, 7)
    assert [side for _, _, side in regions] == [7] + [4] * 4 + [3] * 9
    assert regions[1:5] == [(0, 0, 4), (0, 3, 4), (3, 0, 4), (3, 3, 4)]
    assert [(top, left) for top, left, _ in regions[5:]] == [(i, j) for i in (0, 2, 4) for j in (0, 2, 4)]


@pytest.mark.parametrize("height, width, number", [(7, 10, 2), (7, 14, 3), (10, 7, 2), (32, 24, 2)])
def test_a_long_map_has_the_regions_that_overlap_nearest_to_40_percent(height, width, number):
    """7 by 10: two squares of 7 overlap by 57 %, three by 79 %."""
    regions = rmac_regions(height, width, scales=1)
    assert len(regions) == number and {side for _, _, side in regions} == {min(height, width)}
    assert max(top + side for top, _, side in regions) == height
    assert max(left + side for _, left, side in regions) == width


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (4, 5), (9, 4), (14, 14)])
def test_rmac_is_the_sum_of_normalized_regional_maxima(shape):
    maps = np.random.default_rng(0).normal(size=[2, *shape, 3])
    wanted = rmac_by_hand(maps, rmac_regions(*shape))
    np.testing.assert_allclose(RMAC(dtype="float64")(maps), wanted, rtol=1e-12)
    for top, left, side in rmac_regions(*shape):
        assert 0 <= top <= top + side <= shape[0] and 0 <= left <= left + side <= shape[1]


@pytest.mark.parametrize("side", [1, 4, 5, 7, 8, 14])
def test_windows_over_the_border_average_what_lies_inside(side):
    maps = np.random.default_rng(0).normal(size=[1, side, side, 1])
    starts = [0]
    while starts[-1] + 5 < side:
        starts.append(starts[-1] + 3)
    wanted = [[maps[0, i : i + 5, j : j + 5].mean() for j in starts] for i in starts]
    pooled = InnerAveragePooling2D(5, 3, dtype="float64")(maps)
    np.testing.assert_allclose(pooled[0, :, :, 0], wanted, rtol=1e-12)


@pytest.mark.parametrize("mode", ["average", "max", "flatten"])
def test_keras_poolings_are_what_their_names_say(mode):
    maps = MAPS.astype("float32")
    images = keras.Input(maps.shape[1:])
    wanted = {"average": maps.mean((1, 2)), "max": maps.max((1, 2)), "flatten": maps.reshape(2, -1)}[mode]
    np.testing.assert_allclose(keras.Model(images, pool(images, mode))(maps), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_pooling_gives_the_same(mode, tmp_path):
    images = keras.Input(MAPS.shape[1:])
    model = keras.Model(images, pool(images, mode))
    for variable in model.trainable_variables:
        variable.assign(2.5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(MAPS), model(MAPS))
    assert model.output_shape == (None, model(MAPS).shape[1])


@pytest.mark.parametrize("mode", ["gem", "rmac"])
def test_powers_and_norms_are_float32_under_mixed_precision(mode):
    images = keras.Input([4, 4, 2], dtype="bfloat16")
    assert pool(images, mode).dtype == "float32"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GeM(initial_p=0), "initial_p.*above 0"),
        (lambda: GeM(smallest=-1), "smallest.*above 0"),
        (lambda: RMAC(scales=0), "scales.*at least 1"),
        (lambda: pool(keras.Input([4, 4, 2]), "gme"), 'Did you mean "gem"'),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_regions_along_the_longer_side_overlap_by_nearly_40_percent():
    """Two of 4 x 4 in 4 x 7 overlap by 25 %; three would by 62 %."""
    assert rmac_regions(4, 7, scales=1) == [(0, 0, 4), (0, 3, 4)]
    assert rmac_regions(7, 4, scales=1) == [(0, 0, 4), (3, 0, 4)]
