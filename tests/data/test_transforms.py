"""Transforms against plain NumPy; where a random window lies is read off a picture of coordinates."""

import colorsys
import functools
import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.data import transforms
from tfrank.data.decoding import full_extent
from tfrank.data.transforms import Transform, evaluation_transform, training_transform

rng = np.random.default_rng(0)
NOISE = rng.integers(0, 256, [61, 83, 3], np.uint8)
RANDOM = [
    Transform(size=24, resize=32, flip=0.5, color_jitter=(0.4, 0.4, 0.4, 0.1)),
    Transform(size=24, resize=32, crop="random_resized", flip=0.5),
    Transform(size=24, resize=32, crop="random_part", flip=0.5),
    Transform(size=24, crop="scaled", scale=(0.5, 2), rotation=30, flip=0.5),
    Transform(size=24, crop="scaled", fit="whole", scale=(1, 1.4), flip=0.5),
    Transform(size=24, crop="scaled", fit="wider", scale=(1, 1.4), flip=0.5),
]


def resized(image, height, width):
    """Bilinear, antialiased: each output pixel weighs the input under a triangle around its centre."""

    rows, columns = weights(image.shape[0], height), weights(image.shape[1], width)
    return np.stack([rows @ image[:, :, channel] @ columns.T for channel in range(3)], axis=2)


@functools.cache
def weights(old, new):
    """`[new, old]`."""
    matrix = np.zeros([new, old])
    for i in range(new):
        for j in range(old):
            distance = abs((i + 0.5) * old / new - (j + 0.5)) / max(1, old / new)
            matrix[i, j] = max(0, 1 - distance)
    return matrix / matrix.sum(1, keepdims=True)


def coordinates(height, width, step=1):
    """A picture whose red is the row and whose green is the column, times `step`."""
    rows, columns = np.mgrid[:height, :width] * step
    return np.dstack([rows, columns, rows * 0]).astype(np.uint8)


def many(image, transform, count=300):
    """`count` augmented images, seeds (7, 0) and on."""
    return traced(transform)(image, tf.range(count, dtype=tf.int64)).numpy().astype(int)


@functools.cache
def traced(transform):
    """From an image of any size, and the second numbers of seeds, to augmented images."""

    def transforms_of(image, numbers):
        def augmented(number):
            return training_transform(image, transform, [7, number])

        return tf.map_fn(augmented, numbers, fn_output_signature=tf.uint8)

    return tf.function(
        transforms_of,
        input_signature=[tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([None], tf.int64)],
    )


def affine(crop, step=1):
    """`[2, 3]`: row and column of the picture of `coordinates` by (y, x, 1) of its crop."""
    margin = len(crop) // 6
    y, x = np.mgrid[margin : len(crop) - margin, margin : len(crop) - margin]
    known = np.stack([y.ravel(), x.ravel(), np.ones(y.size)], axis=1)
    return np.linalg.lstsq(known, crop[y.ravel(), x.ravel(), :2] / step, rcond=None)[0].T


def assert_uniform(values, low, high):
    assert low <= min(values) and max(values) <= high
    assert scipy.stats.kstest(values, "uniform", (low, high - low)).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(61, 83), (200, 10), (31, 31), (1, 1), (300, 7)])
@pytest.mark.parametrize("resize", [0, 32])
def test_without_a_crop_a_warped_view_is_the_whole_image_resized(shape, resize):
    image = rng.integers(0, 256, [*shape, 3], np.uint8)
    transform = Transform(size=32, resize=resize)
    expected = tf.cast(tf.round(tf.image.resize(image, [32, 32], antialias=True)), tf.uint8)
    np.testing.assert_array_equal(evaluation_transform(image, transform), expected)
    np.testing.assert_array_equal(training_transform(image, transform, [3, 4]), expected)


@pytest.mark.parametrize("crop", transforms.CROPS)
@pytest.mark.parametrize("size", [16, 17])
def test_at_test_the_centre_is_seen(crop, size):
    sides = (20, round(83 * 20 / 61)) if crop in ("random_part", "scaled") else (20, 20)
    top, left = ((side - size) // 2 for side in sides)
    expected = resized(NOISE, *sides)[top : top + size, left : left + size]
    got = evaluation_transform(NOISE, Transform(size=size, resize=20, crop=crop))
    np.testing.assert_allclose(got, expected, atol=0.51)


def test_a_window_is_what_warping_all_and_slicing_gives():
    for _ in range(10):
        image = rng.integers(0, 256, [*rng.integers(1, 500, 2), 3], np.uint8)
        y, x = rng.integers(0, 33, 2)
        all_of_it = tf.image.resize(image, [256, 256], antialias=True)
        got = transforms._window(
            full_extent(tf.constant(image)), tf.constant([256, 256]), tf.constant([y, x]), [224, 224]
        )
        np.testing.assert_allclose(got, all_of_it[y : y + 224, x : x + 224], atol=0.002)


def test_a_training_crop_is_one_of_the_windows_mirrored_or_not():
    picture = resized(NOISE, 20, 20)
    for got in many(NOISE, Transform(size=16, resize=20, flip=0.5), 10):
        windows = [picture[y : y + 16, x : x + 16] for y in range(5) for x in range(5)]
        assert min(np.abs(got - w[:, ::turn]).max() for w in windows for turn in (1, -1)) < 0.51


@pytest.mark.parametrize(
    "transform", [Transform(size=32, resize=40), Transform(size=32, crop="scaled")], ids=lambda one: one.crop
)
def test_windows_are_uniform_from_the_first_place_to_the_last(transform):
    corners = many(coordinates(40, 40), transform, 1000)[:, 0, 0, :2]
    places = np.zeros([9, 9], int)
    np.add.at(places, tuple(corners.T), 1)
    assert scipy.stats.chisquare(places.ravel()).pvalue > 1e-3


@pytest.mark.parametrize("flip", [0.0, 0.25, 1.0])
def test_images_are_mirrored_with_the_probability_asked_for(flip):
    for crop in transforms.CROPS:
        seen = many(coordinates(40, 40), Transform(size=32, resize=40, crop=crop, flip=flip))
        mirrored = np.mean(seen[:, 0, 0, 1] > seen[:, 0, -1, 1])
        assert abs(mirrored - flip) <= 4 * math.sqrt(flip * (1 - flip) / 300)


def drawn_part(side, area, ratio):
    """Height, width, row and column of a random part of a square, drawn one try after another."""
    for _ in range(10):
        share, aspect = rng.uniform(*area), math.exp(rng.uniform(*np.log(ratio)))
        width, height = (round(math.sqrt(side * side * share * r)) for r in (aspect, 1 / aspect))
        if 0 < width <= side and 0 < height <= side:
            return height, width, rng.integers(side - height + 1), rng.integers(side - width + 1)
    return side, side, 0, 0


@pytest.mark.parametrize(
    "area, ratio", [((0.5, 1), (0.75, 4 / 3)), ((0.16, 0.3), (0.5, 1.5)), ((0.1, 0.15), (0.2, 5))]
)
@pytest.mark.parametrize("crop", ["random_resized", "random_part"])
def test_random_parts_have_the_areas_the_ratios_and_the_places_of_the_usual_loop(crop, area, ratio):
    transform = Transform(size=50, resize=64, crop=crop, crop_area=area, crop_ratio=ratio)
    maps = np.array([affine(seen, 4) for seen in many(coordinates(64, 64, 4), transform, 500)])
    height, width = maps[:, 0, 0] * 50, maps[:, 1, 1] * 50
    row, column = (maps[:, i, 2] - maps[:, i, i] / 2 + 0.5 for i in range(2))
    expected = np.array([drawn_part(64, area, ratio) for _ in range(4000)]).T
    slack = 0.06
    assert area[0] - slack < min(height * width) / 64**2 and max(height * width) / 64**2 < area[1] + slack
    # Places are whole numbers of pixels, measured to a tenth.
    for got, of, error in [
        (height * width, expected[0] * expected[1], 0),
        (width / height, expected[1] / expected[0], 0),
        (row, expected[2], 0.6),
        (column, expected[3], 0.6),
    ]:
        differences = np.quantile(got, [0.1, 0.5, 0.9]) - np.quantile(of, [0.1, 0.5, 0.9])
        assert np.abs(differences).max() < max(0.07 * np.ptp(of), error)


def test_a_random_part_is_cut_out_of_the_warped_image_and_resized():
    transform = Transform(size=24, resize=32, crop="random_resized", crop_area=(0.2, 1))
    picture = resized(NOISE, 32, 32)
    near = np.array(
        [(h, w, y, x) for h in (-1, 0, 1) for w in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    )
    for where, got in zip(many(coordinates(32, 32, 8), transform, 8), many(NOISE, transform, 8)):
        found = affine(where, 8)
        sides = found[[0, 1], [0, 1]] * 24
        part = np.round([*sides, *(found[:, 2] - sides / 48 + 0.5)]).astype(int)
        parts = [p for p in near + part if min(p[2:]) >= 0 and max(p[:2] + p[2:]) <= 32]
        cut = [resized(picture[y : y + h, x : x + w], 24, 24) for h, w, y, x in parts]
        assert min(np.abs(got - one).max() for one in cut) < 0.51


def test_a_random_part_of_the_image_itself_keeps_its_detail():
    """Stripes of two pixels, which warping to the square of 64 would leave grey."""
    stripes = np.where(np.arange(512) // 2 % 2, 255, 0).astype(np.uint8)
    image = np.broadcast_to(stripes[None, :, None], [300, 512, 3])
    options = {"size": 50, "resize": 64, "crop_area": (0.02, 0.02), "crop_ratio": (1.0, 1.0)}
    deviations = {
        crop: many(image, Transform(crop=crop, **options), 5).astype(float).std()
        for crop in ("random_resized", "random_part")
    }
    assert deviations["random_resized"] < 10 and deviations["random_part"] > 80


def test_a_random_part_of_the_image_itself_has_its_own_proportions():
    """A part of 2 % of 300 x 512 with a ratio of 1 is a square of 55 pixels, anywhere in the image."""
    transform = Transform(size=50, crop="random_part", crop_area=(0.02, 0.02), crop_ratio=(1.0, 1.0))
    maps = np.array([affine(seen, 0.5) for seen in many(coordinates(300, 512, 0.5), transform, 100)])
    side = math.sqrt(0.02 * 300 * 512)
    np.testing.assert_allclose(maps[:, [0, 1], [0, 1]] * 50, side, rtol=0.03)
    places = maps[:, :, 2]
    assert (places.max(axis=0) > [0.9 * (300 - side), 0.9 * (512 - side)]).all()
    assert (places.min(axis=0) < [0.1 * (300 - side), 0.1 * (512 - side)]).all()


def test_where_no_part_of_the_image_itself_fits_the_largest_central_one_is_taken():
    transform = Transform(size=40, crop="random_part", crop_area=(1, 1), crop_ratio=(1.0, 1.0))
    (seen,) = many(NOISE, transform, 1)
    # At the edges, pixels beside the part count.
    inside = (slice(2, -2), slice(2, -2))
    np.testing.assert_allclose(seen[inside], resized(NOISE[:, 11:72], 40, 40)[inside], atol=2)


@pytest.mark.parametrize("ratio, rows, columns", [(2, (8, 24), (0, 32)), (0.5, (0, 32), (8, 24))])
def test_where_no_part_fits_the_largest_central_one_is_taken(ratio, rows, columns):
    ratios = (ratio, ratio)
    transform = Transform(size=24, resize=32, crop="random_resized", crop_area=(1, 1), crop_ratio=ratios)
    expected = resized(resized(NOISE, 32, 32)[slice(*rows), slice(*columns)], 24, 24)
    np.testing.assert_allclose(many(NOISE, transform, 3), [expected] * 3, atol=0.51)


def test_a_part_of_less_than_a_pixel_does_not_fit():
    transform = Transform(size=24, resize=32, crop="random_resized", crop_area=(1e-5, 1e-5))
    expected = resized(resized(NOISE, 32, 32), 24, 24)
    np.testing.assert_allclose(many(NOISE, transform, 3), [expected] * 3, atol=0.51)


def test_scaled_crops_have_random_factors():
    seen = many(coordinates(100, 120, 2), Transform(size=48, crop="scaled", scale=(0.8, 1.6)))
    factors = [1 / affine(crop, 2).diagonal() for crop in seen]
    assert_uniform(np.clip([down for down, _ in factors], 0.8, 1.6), 0.8, 1.6)
    np.testing.assert_allclose(*np.transpose(factors), rtol=0.03)


def test_with_resize_factors_are_of_the_image_brought_to_it():
    seen = many(coordinates(100, 120, 2), Transform(size=48, resize=60, crop="scaled", scale=(1, 1.2)), 100)
    factors = [1 / affine(crop, 2)[0, 0] for crop in seen]
    assert 0.595 < min(factors) < 0.61 and 0.71 < max(factors) < 0.725


def test_turned_crops_have_uniform_angles_and_keep_the_scale():
    seen = many(coordinates(120, 110, 2), Transform(size=60, crop="scaled", rotation=40))
    maps = np.array([affine(crop, 2)[:, :2] for crop in seen])
    angles = np.degrees(np.arctan2(maps[:, 0, 1], maps[:, 0, 0]))
    assert_uniform(np.clip(angles, -40, 40), -40, 40)
    np.testing.assert_allclose(np.linalg.det(maps), 1, atol=0.01)


def test_a_turned_view_shows_the_image_where_the_picture_of_coordinates_says():
    transform = Transform(size=60, crop="scaled", rotation=40)
    image = scipy.ndimage.gaussian_filter(rng.integers(0, 256, [120, 110, 3]) * 2 - 128.0, [2, 2, 0])
    image = np.clip(image, 0, 255).astype(np.uint8)
    for where, got in zip(many(coordinates(120, 110, 2), transform, 8), many(image, transform, 8)):
        y, x = np.mgrid[:60, :60]
        down, across = np.einsum("ij,jyx->iyx", affine(where, 2), np.stack([y, x, np.ones_like(x)]))
        for channel in range(3):
            expected = scipy.ndimage.map_coordinates(
                image[:, :, channel].astype(float), [down, across], order=1
            )
            np.testing.assert_allclose(got[:, :, channel], expected, atol=2)


@pytest.mark.parametrize("shape", [(68, 68), (49, 120), (10, 10), (1, 9), (200, 300)])
def test_a_scaled_view_shows_nothing_beyond_the_image(shape):
    transform = Transform(size=48, crop="scaled", scale=(0.2, 1.5), rotation=180)
    assert many(np.full([*shape, 3], 255, np.uint8), transform, 100).min() == 255


@pytest.mark.parametrize("rotation", [0, 45])
def test_an_image_too_small_is_enlarged_just_enough(rotation):
    for crop in many(coordinates(30, 50, 5), Transform(size=48, crop="scaled", rotation=rotation), 40):
        (down, aside), (across, right) = affine(crop, 5)[:, :2]
        extent = (abs(down) + abs(aside)) * 48
        assert 29 < extent < 30.5 and abs(down - right) < 0.02 and abs(aside + across) < 0.02


def jittered(image, brightness, contrast, saturation, hue):
    """A pixel at a time, by the definitions of torchvision's ColorJitter."""

    def blended(one, other, factor):
        return min(max(factor * one + (1 - factor) * other, 0), 255)

    def gray(pixel):
        return 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]

    pixels = [[blended(value, 0, brightness) for value in pixel] for pixel in image.reshape(-1, 3).tolist()]
    mean = sum(map(gray, pixels)) / len(pixels)
    pixels = [[blended(value, mean, contrast) for value in pixel] for pixel in pixels]
    pixels = [[blended(value, gray(pixel), saturation) for value in pixel] for pixel in pixels]
    result = []
    for red, green, blue in pixels:
        h, s, v = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
        result.append(colorsys.hsv_to_rgb((h + hue) % 1, s, v))
    return np.reshape(result, image.shape) * 255


@pytest.mark.parametrize("numbers", [(0.1, 0.2, 0.3, 0.4), (0.9, 0.8, 0.7, 0.95), (0.5, 0.5, 0.5, 0.5)])
def test_colours_are_jittered_as_torchvision_defines_it(numbers):
    """From numbers in [0, 1) to factors in [1 - strength, 1 + strength], not below 0."""
    b, c, s, h = numbers
    expected = jittered(NOISE, 0.5 + b, 0.7 + 0.6 * c, 0.8 + 0.4 * s, -0.1 + 0.2 * h)
    got = transforms._jittered(tf.cast(NOISE, tf.float32), (0.5, 0.3, 0.2, 0.1), numbers)
    np.testing.assert_allclose(got, expected, atol=0.05)


@pytest.mark.parametrize("strength, low, high", [(0.4, 0.6, 1.4), (1.5, 0.0, 2.5)])
def test_factors_of_brightness_are_uniform(strength, low, high):
    transform = Transform(size=1, color_jitter=(strength, 0, 0, 0))
    seen = many(np.full([2, 2, 3], 100, np.uint8), transform, 500)[:, 0, 0, 0]
    assert_uniform((seen + rng.uniform(-0.5, 0.5, 500)).clip(100 * low, 100 * high), 100 * low, 100 * high)


@pytest.mark.parametrize("transform", RANDOM, ids=lambda transform: transform.crop)
def test_an_augmentation_depends_on_its_seed_only(transform):
    def augmented(number):
        return training_transform(NOISE, transform, [7, number])

    seen = tf.data.Dataset.range(20).map(augmented, num_parallel_calls=2)
    in_pipeline = list(seen.as_numpy_iterator())
    alone = [training_transform(NOISE, transform, [7, number]) for number in reversed(range(20))]
    np.testing.assert_array_equal(in_pipeline, alone[::-1])
    assert len({one.tobytes() for one in in_pipeline}) == 20
    assert (training_transform(NOISE, transform, [8, 0]) != in_pipeline[0]).numpy().any()


@pytest.mark.parametrize("transform", RANDOM, ids=lambda transform: transform.crop)
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (5000, 1), (1, 5000), (23, 25), (2, 2)])
def test_every_image_can_be_transformed(transform, shape):
    image = tf.fill([*shape, 3], tf.constant(77, tf.uint8))
    plain = Transform(**{**vars(transform), "color_jitter": (0, 0, 0, 0)})
    for one in [evaluation_transform(image, transform), *many(image.numpy(), plain, 20)]:
        np.testing.assert_array_equal(one, np.full([24, 24, 3], 77))


@pytest.mark.parametrize("transform", RANDOM, ids=lambda transform: transform.crop)
def test_shapes_are_known_where_those_of_the_images_are_not(transform):
    image = tf.TensorSpec([None, None, 3], tf.uint8)
    seed = tf.TensorSpec([2], tf.int64)
    train = tf.function(lambda image, seed: training_transform(image, transform, seed)).get_concrete_function(
        image, seed
    )
    test = tf.function(lambda image: evaluation_transform(image, transform)).get_concrete_function(image)
    for output in (*train.outputs, *test.outputs):
        assert output.shape == [24, 24, 3] and output.dtype == tf.uint8


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"size": 0}, "`size`. Expected an integer of at least 1"),
        ({"resize": 20}, "`resize`. Expected 0 or an integer of at least size=24. Received: resize=20"),
        ({"crop": "wrap"}, '`crop`.*Did you mean "warp"'),
        ({"crop_area": (0.5, 1.1)}, "`crop_area`"),
        ({"crop_area": (0.9, 0.5)}, "`crop_area`. Expected two numbers, the lesser first"),
        ({"crop_ratio": (0, 1)}, "`crop_ratio`"),
        ({"crop_ratio": (1,)}, "`crop_ratio`"),
        ({"flip": 1.5}, "`flip`. Expected a finite number of at least 0 and of at most 1"),
        ({"color_jitter": (0.1, 0.1, 0.1)}, "`color_jitter`. Expected four numbers, the last at most 0.5"),
        ({"color_jitter": (0, 0, 0, 0.6)}, "`color_jitter`"),
        ({"color_jitter": (-1, 0, 0, 0)}, "`color_jitter`"),
        ({"rotation": -1}, "`rotation`"),
        ({"rotation": 181, "crop": "scaled"}, "`rotation`. Expected a finite number .* of at most 180"),
        ({"rotation": 1}, "`rotation`. Expected 0, or crop=scaled"),
        ({"rotation": 1, "crop": "random_resized"}, "`rotation`. Expected 0, or crop=scaled"),
        ({"scale": (0, 1)}, "`scale`. Expected a finite number above 0"),
        ({"scale": (1, 1.1)}, "`scale`. Expected .1, 1., or crop=scaled"),
        ({"scale": [0.9, 1], "crop": "random_resized"}, "`scale`. Expected .1, 1., or crop=scaled"),
    ],
)
def test_a_field_out_of_range_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Transform(**{"size": 24, **fields})


def test_a_whole_fit_sees_what_warping_sees_and_its_random_windows_keep_no_proportions():
    whole = Transform(size=40, crop="scaled", fit="whole", scale=(1.0, 1.25))
    np.testing.assert_array_equal(
        evaluation_transform(NOISE, whole), evaluation_transform(NOISE, Transform(size=40))
    )
    wide = coordinates(40, 120, step=2)
    seen = many(wide, whole)
    across, down = (np.ptp(seen[..., channel], axis=(1, 2)) for channel in (1, 0))
    assert across.max() > 220 and across.min() > 170
    np.testing.assert_allclose(across / down, 3, atol=0.25)


@pytest.mark.parametrize("fit, share", [("centre", 1 / 3), ("wider", 3 ** (-2 / 3)), ("whole", 1)])
def test_each_fit_sees_its_share_of_the_longer_side(fit, share):
    seen = evaluation_transform(coordinates(40, 120, step=2), Transform(size=40, crop="scaled", fit=fit))
    across, down = (np.ptp(seen[..., channel]) for channel in (1, 0))
    np.testing.assert_allclose([across, down], [238 * share, 78], atol=4)


def test_a_whole_fit_is_for_scaled_crops_alone():
    with pytest.raises(InputError, match=r"`fit`\. Expected centre, or crop=scaled"):
        Transform(size=4, fit="whole")
