"""Boxes against NumPy slices in pixels; aligned faces against Umeyama's estimate and SciPy's sampling."""

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from tfrank.data.regions import ARCFACE_POINTS, align_face, crop_to_box

IMAGE = np.random.default_rng(0).integers(0, 256, [60, 80, 3], np.uint8)
NO_BOX = tf.fill([4], np.nan)


def shares(*pixels):
    """A box in pixels, as shares of IMAGE."""
    return tf.constant(np.array(pixels) / [80, 60, 80, 60], tf.float32)


@pytest.mark.parametrize(
    "box, options, rows, columns",
    [
        ((20, 10, 40, 50), {}, (10, 50), (20, 40)),
        ((0, 0, 80, 60), {}, (0, 60), (0, 80)),
        ((20, 10, 40, 30), {"margin": 0.3}, (7, 33), (17, 43)),
        ((20, 10, 40, 30), {"margin": 1.0}, (0, 40), (10, 50)),
        ((60, 40, 80, 60), {"margin": 0.5}, (35, 60), (55, 80)),
        # VGGFace2: 20 wide and 32 high; 7/8 of the height is 28, and both grow by 1.3 about (40, 30).
        ((30, 14, 50, 46), {"margin": 0.3, "min_aspect": 0.875}, (9, 51), (22, 58)),
        ((10, 14, 50, 46), {"min_aspect": 0.875}, (14, 46), (10, 50)),
        ((79.9, 59.9, 90, 70), {}, (59, 60), (79, 80)),
        ((30, 20, 30, 20), {}, (20, 21), (30, 31)),
        ((-9, -9, -5, -5), {}, (0, 1), (0, 1)),
    ],
)
def test_a_box_is_cut_out(box, options, rows, columns):
    expected = IMAGE[slice(*rows), slice(*columns)]
    np.testing.assert_array_equal(crop_to_box(IMAGE, shares(*box), **options), expected)


def test_every_whole_box_is_cut_to_the_pixel():
    image = np.arange(487).reshape(1, -1, 1)
    for first in range(486):
        box = tf.constant([first / 487, 0, (first + 1) / 487, 1], tf.float32)
        np.testing.assert_array_equal(crop_to_box(image, box), image[:, first : first + 1])


def umeyama(points, template):
    """The 2x3 matrix from points to template, by Umeyama (1991), eq. 40 to 42."""
    x, y = points - points.mean(0), template - template.mean(0)
    u, d, vt = np.linalg.svd(y.T @ x / len(x))
    sign = np.diag([1, np.sign(np.linalg.det(u) * np.linalg.det(vt))])
    rotation = u @ sign @ vt
    scale = np.trace(np.diag(d) @ sign) / x.var(0).sum()
    return np.column_stack([scale * rotation, template.mean(0) - scale * rotation @ points.mean(0)])


def warped(image, matrix, size):
    """Bilinear, the four neighbours of every point; black beyond the image."""
    inverse = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    y, x = np.mgrid[:size, :size]
    across, down, _ = np.einsum("ij,jyx->iyx", inverse, np.stack([x, y, np.ones_like(x)]))
    planes = [
        scipy.ndimage.map_coordinates(plane, [down, across], order=1, mode="grid-constant")
        for plane in image.astype(float).transpose(2, 0, 1)
    ]
    return np.stack(planes, axis=2)


def face(rng):
    """Landmarks of a face somewhere in IMAGE, turned any way, none quite where it should be."""
    angle, scale = rng.uniform(-np.pi, np.pi), rng.uniform(0.1, 0.6)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return (np.array(ARCFACE_POINTS) - 56 + rng.normal(0, 4, [5, 2])) @ turn.T + rng.uniform(15, 60, 2)


@pytest.mark.parametrize("size", [112, 50])
@pytest.mark.parametrize("seed", range(5))
def test_a_face_is_aligned_as_umeyama_does(seed, size):
    points = face(np.random.default_rng(seed))
    expected = warped(IMAGE, umeyama(points, np.array(ARCFACE_POINTS) * size / 112), size)
    got = align_face(IMAGE, tf.constant(points / [80, 60], tf.float32), size=size)
    assert got.dtype == tf.uint8 and got.shape == [size, size, 3]
    np.testing.assert_allclose(got, expected, atol=0.6)


def test_a_mirrored_face_is_not_mirrored_back():
    points = np.array(ARCFACE_POINTS) * [-0.5, 0.5] + [70, 0]
    matrix = umeyama(points, np.array(ARCFACE_POINTS))
    assert np.linalg.det(matrix[:, :2]) > 0
    got = align_face(IMAGE, tf.constant(points / [80, 60], tf.float32))
    np.testing.assert_allclose(got, warped(IMAGE, matrix, 112), atol=0.6)


def test_an_aligned_face_stays_as_it_is():
    image = np.random.default_rng(1).integers(0, 256, [112, 112, 3], np.uint8)
    points = tf.constant(np.array(ARCFACE_POINTS) / 112, tf.float32)
    np.testing.assert_allclose(align_face(image, points), image.astype(int), atol=1)


def test_no_box_is_the_image_and_no_landmarks_the_image_resized():
    np.testing.assert_array_equal(crop_to_box(IMAGE, NO_BOX, margin=0.3, min_aspect=0.875), IMAGE)
    whole = tf.cast(tf.round(tf.image.resize(IMAGE, [112, 112], antialias=True)), tf.uint8)
    for landmarks in (tf.fill([5, 2], np.nan), tf.zeros([5, 2]), tf.fill([5, 2], 0.3)):
        np.testing.assert_array_equal(align_face(IMAGE, landmarks), whole)


def test_both_work_in_a_pipeline_of_images_of_any_size():
    sizes = [(60, 80), (1, 1), (3, 200)]
    images = tf.data.Dataset.from_generator(
        lambda: (np.zeros([*size, 3], np.uint8) for size in sizes),
        output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    )
    for box in (shares(20, 10, 40, 50), NO_BOX):
        faces = images.map(
            lambda image, box=box: align_face(crop_to_box(image, box), tf.fill([5, 2], np.nan))
        )
        assert faces.element_spec.shape == [112, 112, 3] and len(list(faces)) == 3
