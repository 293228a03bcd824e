"""Training augmentation and test transform of an image, as published in the papers.

The order is geometry, colour jitter (brightness, contrast, saturation, hue), flip. Values stay floats in
[0, 255] and are rounded once, after the jitter. All random numbers of an image come from one stateless draw.
A seed therefore always gives the same result.
"""

import dataclasses
import math

import tensorflow as tf

from tfrank.common import checks
from tfrank.data.decoding import DecodedImage, full_extent

CROPS = ("warp", "random_resized", "random_part", "scaled")
# Those that keep the proportions of an image at test.
_PROPORTIONAL = ("random_part", "scaled")
# The exponent of an image's length / width by which it is squeezed, not cut; see `Transform.fit`.
FITS = {"centre": 0.0, "wider": 1 / 3, "whole": 1.0}
# Random windows to try; if none fits, the largest central window is used, as is usual.
TRIES = 10
# A random part of an image lies on a grid of so many lines along its shorter side.
_GRID = 4096
# Positions of the random numbers: flip; four for colour; row and column of the window; then its shape.
_FLIP, _COLOR, _PLACE, _SHAPE = 0, slice(1, 5), slice(5, 7), slice(7, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
    """The transform that makes an image a square of `size` pixels.

    Attributes:
        size: side of the result, in pixels.
        resize: side in pixels that the image is resized to before a window is cropped; 0 means `size`.
        crop: "warp": the image is warped to a square of `resize`, and a window of `size` is cropped: at
                random in training, central at test. PNP and Smooth-AP: resize 256, size 224, flip 0.5; RLL's
                ablations: 256, 227.
            "random_resized": in training, a random part of the warped square is resized to `size`. RLL:
                resize 256, size 227. At test the same as "warp".
            "random_part": in training, a random part of the image itself is resized to `size`, so that a
                small part keeps its detail: torchvision's RandomResizedCrop, as in the code of PNP,
                Smooth-AP, Recall@k and Hyp-ViT. At test the same as "scaled".
            "scaled": the image keeps its aspect ratio; mAP_Q: size 800. In training its shorter side is
                resized to `resize`, or kept if that is 0. The image is then scaled by a random factor and
                rotated by a random angle, and a random window is cropped. The window lies within the image;
                an image that is too small for it is enlarged just enough. At test the shorter side is resized
                to `resize` (`size` if 0), and the central window is cropped.
        fit: for "scaled" only: how much of an image a times as long as it is wide is seen. "centre": at test
            the middle 1 / a of it; "whole": it is squeezed into a square as wide as its shorter side before
            all this, so that tests see the whole of it; "wider": it is squeezed a little, to a^(2/3), so that
            tests see the middle 1 / a^(2/3) of it.
        crop_area: least and greatest share of the area, for "random_resized" and "random_part".
        crop_ratio: least and greatest width / height of that part; drawn log-uniformly.
        flip: probability of a horizontal flip.
        color_jitter: strengths of brightness, contrast, saturation (factors are uniform in
            [max(0, 1 - strength), 1 + strength]) and hue (a shift uniform in [-strength, strength] turns of
            the colour circle, at most 0.5), as torchvision defines them.
        rotation: greatest angle in either direction, in degrees, for "scaled" only.
        scale: least and greatest factor, for "scaled" only.

    Raises:
        InputError: a field is out of its range.
    """

    size: int
    resize: int = 0
    crop: str = "warp"
    fit: str = "centre"
    crop_area: tuple[float, float] = (0.5, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.0
    color_jitter: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    rotation: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self):
        checks.integer("size", self.size, at_least=1)
        if checks.integer("resize", self.resize, at_least=0) and self.resize < self.size:
            raise checks.invalid("resize", f"0 or an integer of at least size={self.size}", self.resize)
        checks.one_of("crop", self.crop, CROPS)
        checks.one_of("fit", self.fit, FITS)
        _check_range("crop_area", self.crop_area, at_most=1)
        _check_range("crop_ratio", self.crop_ratio)
        _check_range("scale", self.scale)
        checks.number("flip", self.flip, at_least=0, at_most=1)
        checks.number("rotation", self.rotation, at_least=0, at_most=180)
        jitter = checks.sequence("color_jitter", self.color_jitter, checks.number, at_least=0)
        if len(jitter) != 4 or jitter[3] > 0.5:
            raise checks.invalid("color_jitter", "four numbers, the last at most 0.5", self.color_jitter)
        if self.crop != "scaled" and self.rotation != 0:
            raise checks.invalid("rotation", "0, or crop=scaled, which alone turns images", self.rotation)
        if self.crop != "scaled" and self.fit != "centre":
            raise checks.invalid("fit", "centre, or crop=scaled; other crops squeeze anyway", self.fit)
        if self.crop != "scaled" and tuple(self.scale) != (1, 1):
            raise checks.invalid("scale", "(1, 1), or crop=scaled, which alone scales images", self.scale)

    def test_side(self) -> int:
        """Length in pixels that the shorter side of an image is resized to at test."""
        return self.resize or self.size

    def training_side(self) -> int | None:
        """Greatest length in pixels that the shorter side is resized to in training; None: no such limit."""
        if self.crop == "random_part":
            least, greatest = self.crop_ratio
            return math.ceil(self.size / math.sqrt(self.crop_area[0] * min(least, 1 / greatest)))
        if self.crop != "scaled":
            return self.test_side()
        if not self.resize:
            return None
        # A square rotated by 45 degrees is as wide as its diagonal.
        window = self.size * (math.sqrt(2) if self.rotation else 1)
        return math.ceil(max(self.resize * self.scale[1], window + 1))


def _check_range(name, value, **bounds):
    ends = checks.sequence(name, value, checks.number, above=0, **bounds)
    if len(ends) != 2 or ends[0] > ends[1]:
        raise checks.invalid(name, "two numbers, the lesser first", value)


def training_transform(image: tf.Tensor | DecodedImage, transform: Transform, seed: tf.Tensor) -> tf.Tensor:
    """Returns a randomly augmented image.

    Args:
        image: `[height, width, 3]` uint8, of any size, or a decoded image.
        transform: the transform.
        seed: `[2]` int64 or int32; the same seed gives the same result.

    Returns:
        `[size, size, 3]` uint8.

    >>> transform = Transform(size=224, resize=256, flip=0.5)
    >>> training_transform(tf.zeros([300, 400, 3], tf.uint8), transform, tf.constant([0, 7])).shape
    TensorShape([224, 224, 3])
    """
    image = image if isinstance(image, DecodedImage) else full_extent(image)
    numbers = tf.random.stateless_uniform([7 + 2 * TRIES], seed)
    if transform.crop == "warp":
        result = _warped(image, transform, numbers[_PLACE])
    elif transform.crop == "random_resized":
        result = _random_part_of_square(image, transform, numbers[_PLACE], numbers[_SHAPE])
    elif transform.crop == "random_part":
        result = _random_part(image, transform, numbers[_PLACE], numbers[_SHAPE])
    else:
        result = _scaled(image, transform, numbers[_PLACE], numbers[_SHAPE])
    if any(transform.color_jitter):
        result = _jittered(result, transform.color_jitter, tf.unstack(numbers[_COLOR]))
    result = _to_uint8(result, transform.size)
    return _mirrored(result, numbers[_FLIP] < transform.flip) if transform.flip else result


def evaluation_transform(image: tf.Tensor | DecodedImage, transform: Transform) -> tf.Tensor:
    """Returns the central crop that tests use, without randomness; shapes are as in `training_transform`.

    >>> evaluation_transform(tf.zeros([300, 400, 3], tf.uint8), Transform(size=227, resize=256)).shape
    TensorShape([227, 227, 3])
    """
    image = image if isinstance(image, DecodedImage) else full_extent(image)
    resize = transform.test_side()
    if transform.crop in _PROPORTIONAL:
        resized = _enlarged(image, resize / tf.reduce_min(image.extent), transform)
    else:
        resized = tf.constant([resize, resize])
    window = _window(image, resized, (resized - transform.size) // 2, [transform.size, transform.size])
    return _to_uint8(window, transform.size)


def _window(image, resized, offset, size):
    """Crops the window of `size` at `offset` from the image resized to `resized`; returns floats.

    All three are (height, width). Resizing is bilinear and antialiased; pixels outside the window are not
    computed. The result equals resizing the whole image and slicing, up to rounding of float32 coordinates:
    within 0.002 of 255, and exactly at offset 0.
    """
    scale = tf.cast(resized, tf.float32) / image.extent
    return tf.raw_ops.ScaleAndTranslate(
        images=image.pixels[tf.newaxis],
        size=size,
        scale=scale,
        translation=-tf.cast(offset, tf.float32) - scale * image.first,
        kernel_type="triangle",
        antialias=True,
    )[0]


def _place(place, free):
    """Returns a random offset from 0 to `free`, both included; `place` is uniform in [0, 1)."""
    return tf.cast(place * tf.cast(free + 1, tf.float32), tf.int32)


def _warped(image, transform, place):
    resize = transform.test_side()
    offset = _place(place, tf.constant(resize - transform.size))
    return _window(image, tf.constant([resize, resize]), offset, [transform.size, transform.size])


def _random_part_of_square(image, transform, place, shape):
    square = tf.fill([2], transform.test_side())
    part, offset = _drawn_part(square, transform, place, shape)
    return tf.image.resize(
        _window(image, square, offset, part), [transform.size, transform.size], antialias=True
    )


def _random_part(image, transform, place, shape):
    grid = tf.cast(tf.round(image.extent * (_GRID / tf.reduce_min(image.extent))), tf.int32)
    part, offset = _drawn_part(grid, transform, place, shape)
    scale = transform.size / tf.cast(part, tf.float32)
    sides, first = (tf.cast(lines, tf.float32) * scale for lines in (grid, offset))
    return _window(image, sides, first, [transform.size, transform.size])


def _drawn_part(sides, transform, place, shape):
    """Returns the size and the offset of a random part of an image of these sides, all (height, width)."""
    height, width = tf.unstack(tf.cast(sides, tf.float32))
    area = _between(transform.crop_area, shape[:TRIES]) * (height * width)
    ratio = tf.exp(_between([math.log(end) for end in transform.crop_ratio], shape[TRIES:]))
    tries = tf.round(tf.sqrt(tf.stack([area / ratio, area * ratio], axis=1)))
    fits = tf.reduce_all((tries >= 1) & (tries <= tf.cast(sides, tf.float32)), axis=1)
    # The largest part that has an allowed ratio.
    nearest = tf.clip_by_value(width / height, *transform.crop_ratio)
    central = tf.stack([tf.minimum(height, width / nearest), tf.minimum(width, height * nearest)])
    first = tf.argmax(tf.concat([fits, [True]], axis=0))
    tries = tf.concat([tries, [tf.maximum(1.0, tf.round(central))]], axis=0)
    part = tf.cast(tries[first], tf.int32)
    return part, tf.where(first < TRIES, _place(place, sides - part), (sides - part) // 2)


def _scaled(image, transform, place, shape):
    shorter = tf.reduce_min(image.extent)
    factor = _between(transform.scale, shape[0])
    if transform.resize:
        factor *= transform.resize / shorter
    side, angle = tf.constant(transform.size), 0.0
    if transform.rotation:
        angle = _between([-math.radians(transform.rotation), math.radians(transform.rotation)], shape[1])
        # Side of the axis-aligned square around the rotated one.
        extent = tf.abs(tf.cos(angle)) + tf.abs(tf.sin(angle))
        side = tf.cast(tf.math.ceil(transform.size * extent), tf.int32)
    factor = tf.maximum(factor, tf.cast(side, tf.float32) / shorter)
    resized = _enlarged(image, factor, transform)
    window = _window(image, resized, _place(place, resized - side), tf.stack([side, side]))
    return _turned(window, angle, transform.size) if transform.rotation else window


def _enlarged(image, factor, transform):
    """Returns height and width of the squeezed image times `factor`, rounded."""
    squeeze = FITS[transform.fit]
    extent = image.extent ** (1 - squeeze) * tf.reduce_min(image.extent) ** squeeze
    return tf.cast(tf.round(extent * factor), tf.int32)


def _turned(image, angle, size):
    """Rotates a square image about its centre, bilinearly, and returns its central square of `size`."""
    cos, sin = tf.cos(angle), tf.sin(angle)
    to, source = (size - 1) / 2, (tf.cast(tf.shape(image)[0], tf.float32) - 1) / 2
    across, down = source - to * (cos - sin), source - to * (cos + sin)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack([cos, -sin, across, sin, cos, down, 0.0, 0.0])[tf.newaxis],
        output_shape=[size, size],
        interpolation="BILINEAR",
        fill_mode="NEAREST",
        fill_value=0.0,
    )[0]


def _between(ends, number):
    """Maps a number that is uniform in [0, 1) to one that is uniform between the ends."""
    return ends[0] + number * (ends[1] - ends[0])


def _jittered(image, strengths, numbers):
    brightness, contrast, saturation, hue = strengths
    factors = [_between([max(0.0, 1 - most), 1 + most], n) for most, n in zip(strengths[:3], numbers)]
    if brightness:
        image = _blended(image, 0.0, factors[0])
    if contrast:
        image = _blended(image, tf.reduce_mean(_gray(image)), factors[1])
    if saturation:
        image = _blended(image, _gray(image), factors[2])
    if hue:
        image = tf.image.adjust_hue(image / 255, _between([-hue, hue], numbers[3])) * 255
    return image


def _blended(image, other, factor):
    return tf.clip_by_value(factor * image + (1 - factor) * other, 0.0, 255.0)


def _gray(image):
    return tf.reduce_sum(image * [0.2989, 0.587, 0.114], axis=-1, keepdims=True)


def _to_uint8(image, size):
    # Interpolation and jitter exceed [0, 255] by float rounding errors only, so no clipping is needed.
    return tf.ensure_shape(tf.cast(tf.round(image), tf.uint8), [size, size, 3])


def _mirrored(image, condition):
    # tf.cond costs nothing; tf.where, or a slice with the step -1, takes as long as a resize.
    return tf.cond(condition, lambda: tf.reverse(image, [1]), lambda: image)
