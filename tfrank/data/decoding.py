"""Decodes image files, at reduced size where that is enough, and turns images upright."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

# A JPEG decoded at reduced size keeps at least this many times the pixels, along each side, that it is then
# resized to. On real photos the result differs from that of full decoding by at most 2 of 255 on average,
# with a cosine above 0.999.
SPARE = 2
# Factors by which the JPEG decoder can shrink.
RATIOS = (1, 2, 4, 8)
# Bytes of a file that are searched for its orientation. Metadata segments are shorter and come first.
_HEAD = 2**17
_MOST_SEGMENTS, _MOST_TAGS = 64, 256
# Marker of the segment that precedes the pixels.
_PIXELS = 0xFFDA
_ORIENTATION_TAG, _SHORT, _LONG = 0x0112, 3, 4


class DecodedImage(NamedTuple):
    """A decoded image, which may cover only a part of its pixel array, at fractional positions.

    For example, 13 pixels shrunk to 1/8 have an extent of 1.625, and the decoder returns 2.

    Attributes:
        pixels: `[rows, columns, 3]` uint8.
        first: `[2]` float32, the row and column where the image begins.
        extent: `[2]` float32, its height and width in pixels.
    """

    pixels: tf.Tensor
    first: tf.Tensor
    extent: tf.Tensor


def full_extent(pixels: tf.Tensor) -> DecodedImage:
    """The decoded image that covers a whole array."""
    return DecodedImage(pixels, tf.zeros([2]), tf.cast(tf.shape(pixels)[:2], tf.float32))


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, PNG, WebP, GIF or BMP file, a scalar string, to `[height, width, 3]` uint8 RGB.

    TensorFlow ignores transparency, EXIF orientation and colour profiles. For records that `prepare` wrote,
    `image_files.checked_image` has applied orientation and transparency. Records made elsewhere are decoded
    as they are. Images sent to the exported model are turned `upright`.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def decode_reduced(encoded: tf.Tensor, least_side: int) -> DecodedImage:
    """Decodes as `decode` does, but shrinks a JPEG by 2, 4 or 8 while decoding if it has far more pixels.

    Args:
        encoded: the bytes of a file, a scalar string.
        least_side: the length in pixels that the shorter side will be resized to. The image keeps at least
            `SPARE` times that.
    """

    def reduced():
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        enough = tf.reduce_min(size) // tf.constant(RATIOS[1:]) >= SPARE * least_side
        power = tf.reduce_sum(tf.cast(enough, tf.int32))
        pixels = tf.switch_case(power, [_decoder(encoded, ratio) for ratio in RATIOS])
        return DecodedImage(pixels, tf.zeros([2]), tf.cast(size, tf.float32) / tf.cast(2**power, tf.float32))

    image = tf.cond(tf.io.is_jpeg(encoded), reduced, lambda: full_extent(decode(encoded)))
    return image._replace(pixels=tf.ensure_shape(image.pixels, [None, None, 3]))


def _decoder(encoded: tf.Tensor, ratio: int) -> Callable[[], tf.Tensor]:
    return lambda: tf.io.decode_jpeg(encoded, channels=3, ratio=ratio)


def upright(image: DecodedImage, orientation: tf.Tensor) -> DecodedImage:
    """Turns an image upright, as image viewers do, by its EXIF orientation, 1 to 8."""
    pixels, first, extent = image
    pixels, first, extent = tf.cond(
        orientation > 4,
        lambda: DecodedImage(tf.transpose(pixels, [1, 0, 2]), first[::-1], extent[::-1]),
        lambda: DecodedImage(pixels, first, extent),
    )
    for axis, mirrored in enumerate(((3, 4, 7, 8), (2, 3, 6, 7))):
        turn = tf.reduce_any(orientation == tf.constant(mirrored))
        beyond = tf.cast(tf.shape(pixels)[axis], tf.float32) - extent[axis] - first[axis]
        first = tf.where((tf.range(2) == axis) & turn, beyond, first)
        pixels = tf.cond(turn, _mirrored(pixels, axis), _same(pixels))
    return DecodedImage(tf.ensure_shape(pixels, [None, None, 3]), first, extent)


def _mirrored(pixels, axis):
    return lambda: tf.reverse(pixels, [axis])


def _same(pixels):
    return lambda: pixels


def exif_orientation(encoded: tf.Tensor) -> tf.Tensor:
    """Reads the EXIF orientation of a JPEG, int32 1 to 8; 1 if it has none or the file is not a JPEG.

    Uses TensorFlow ops only, so that a SavedModel can contain it.

    Args:
        encoded: the bytes of a file, a scalar string.
    """
    return tf.cond(tf.io.is_jpeg(encoded), lambda: _orientation(encoded), lambda: tf.constant(1))


def _orientation(encoded):
    head = tf.io.decode_raw(tf.strings.substr(encoded, 0, _HEAD), tf.uint8)
    data = tf.cast(tf.pad(head, [[0, 4]]), tf.int64)
    end = tf.size(head, tf.int64)

    def number(at, count, little):
        """The integer of `count` bytes at each position; bytes beyond the end count as 0."""
        places = tf.minimum(tf.expand_dims(at, -1) + tf.range(count, dtype=tf.int64), end)
        shifts = 8 * tf.range(count, dtype=tf.int64)
        shifts = tf.where(little, shifts, shifts[::-1])
        return tf.reduce_sum(tf.bitwise.left_shift(tf.gather(data, places), shifts), axis=-1)

    def is_exif(at):
        name = number(at + 4, 4, False) == int.from_bytes(b"Exif", "big")
        return (number(at, 2, False) == 0xFFE1) & name & (number(at + 8, 2, False) == 0)

    def goes_on(at):
        marker = number(at, 2, False)
        return (at < end) & (marker >= 0xFF00) & (marker != _PIXELS) & ~is_exif(at)

    def next_segment(at):
        fill = number(at, 2, False) == 0xFFFF
        return [tf.where(fill, at + 1, at + 2 + number(at + 2, 2, False))]

    (at,) = tf.while_loop(
        goes_on, next_segment, [tf.constant(2, tf.int64)], maximum_iterations=_MOST_SEGMENTS
    )
    tiff = at + 10
    order = number(tiff, 4, False)
    little = order == 0x49492A00
    known = is_exif(at) & (little | (order == 0x4D4D002A))
    directory = tiff + number(tiff + 4, 4, little)
    tags = directory + 2 + 12 * tf.range(tf.minimum(number(directory, 2, little), _MOST_TAGS))
    kind, count = number(tags + 2, 2, little), number(tags + 4, 4, little)
    value = tf.where(kind == _SHORT, number(tags + 8, 2, little), number(tags + 8, 4, little))
    valid = (
        (number(tags, 2, little) == _ORIENTATION_TAG) & (count == 1) & ((kind == _SHORT) | (kind == _LONG))
    )
    valid &= known & (value >= 1) & (value <= 8)
    return tf.cast(tf.concat([tf.boolean_mask(value, valid), [1]], 0)[0], tf.int32)
