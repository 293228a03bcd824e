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
# Most segments of a JPEG, or chunks of a PNG, that are searched for the orientation.
_MOST_PARTS = 4096
_ORIENTATION_TAG, _SHORT = 0x0112, 3


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
    `image_files.checked_image` has applied them. Records made elsewhere are decoded as they are. Images sent
    to the exported model are decoded `over_white` and turned `upright`.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def decode_over_white(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes as `decode` does, but with the transparent parts of a PNG or WebP over white."""

    def over_white():
        image = tf.io.decode_image(encoded, channels=4, expand_animations=False)
        image = tf.cast(tf.ensure_shape(image, [None, None, 4]), tf.float32)
        alpha = image[:, :, 3:] / 255
        return tf.cast(tf.round(image[:, :, :3] * alpha + 255 * (1 - alpha)), tf.uint8)

    clear = _is_png_with_alpha(encoded) | _is_webp_with_alpha(encoded)
    image = tf.cond(clear, over_white, lambda: decode(encoded))
    return tf.ensure_shape(image, [None, None, 3])


def decode_reduced(
    encoded: tf.Tensor, least_side: int, decode: Callable[[tf.Tensor], tf.Tensor] = decode
) -> DecodedImage:
    """Decodes, but shrinks a JPEG by 2, 4 or 8 while decoding if it has far more pixels.

    Args:
        encoded: the bytes of a file, a scalar string.
        least_side: the length in pixels that the shorter side will be resized to. The image keeps at least
            `SPARE` times that.
        decode: decodes files of other formats.
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
    """Reads the orientation of a JPEG or PNG, int32 1 to 8; 1 if it has none, or the file is another.

    It is that of `prepare.orientation`, the one that browsers heed. Uses TensorFlow ops only, so that a
    SavedModel can contain it.

    Args:
        encoded: the bytes of a file, a scalar string.
    """
    exif = tf.case(
        [
            (tf.io.is_jpeg(encoded), lambda: _exif_of_jpeg(encoded)),
            (_is_png(encoded), lambda: _exif_of_png(encoded)),
        ],
        default=lambda: tf.constant(""),
    )
    return _orientation(exif)


def _is_png(encoded):
    return tf.strings.substr(encoded, 0, 8) == b"\x89PNG\r\n\x1a\n"


def _is_png_with_alpha(encoded):
    """Whether a PNG has alpha, or a colour that is transparent. TensorFlow gives others a wrong alpha."""
    color = _number(encoded, 25, 1)

    def has_alpha():
        named = _part(encoded, _png_chunk(encoded, b"tRNS") + 4, 4) == b"tRNS"
        return (color == 4) | (color == 6) | named

    return tf.cond(_is_png(encoded), has_alpha, lambda: tf.constant(False))


def _png_chunk(encoded, name):
    """The place of the first chunk of a name in a PNG, or of its pixels if there is none before them."""

    def goes_on(at):
        here = _part(encoded, at + 4, 4)
        return (at < _length(encoded)) & (here != name) & (here != b"IDAT")

    def next_chunk(at):
        return [at + 12 + _number(encoded, at, 4)]

    (at,) = tf.while_loop(goes_on, next_chunk, [tf.constant(8, tf.int64)], maximum_iterations=_MOST_PARTS)
    return at


def _is_webp_with_alpha(encoded):
    """Whether TensorFlow decodes a WebP with four channels, and only so; animations are such too."""
    kind = _part(encoded, 12, 4)
    extended = (kind == b"VP8X") & (tf.bitwise.bitwise_and(_number(encoded, 20, 1), 0x12) > 0)
    lossless = (kind == b"VP8L") & (tf.bitwise.bitwise_and(_number(encoded, 24, 1), 0x10) > 0)
    return (_part(encoded, 8, 4) == b"WEBP") & (extended | lossless)


def _part(text, at, count):
    """The bytes at a place of a scalar string, fewer at its end."""
    return tf.strings.substr(text, tf.minimum(tf.cast(at, tf.int64), _length(text)), tf.cast(count, tf.int64))


def _length(text):
    return tf.cast(tf.strings.length(text), tf.int64)


def _number(text, at, count, little=False):
    """The integer of `count` bytes at a place, int64; bytes beyond the end count as 0."""
    found = tf.cast(tf.io.decode_raw(_part(text, at, count), tf.uint8), tf.int64)
    return _integer(tf.pad(found, [[0, count - tf.size(found)]]), little)


def _integer(numbers, little):
    """Integers of `[..., count]` bytes."""
    shifts = 8 * tf.range(tf.shape(numbers, tf.int64)[-1], dtype=tf.int64)
    shifts = tf.where(little, shifts, shifts[::-1])
    return tf.reduce_sum(tf.bitwise.left_shift(numbers, shifts), axis=-1)


def _exif_of_jpeg(encoded):
    """The first EXIF data before the pixels of a JPEG; "" if there is none."""

    def is_exif(at):
        name = _part(encoded, at + 4, 6)
        return (_number(encoded, at, 2) == 0xFFE1) & ((name == b"Exif\0\0") | (name == b"Exif\0\xff"))

    def goes_on(at):
        marker = _number(encoded, at, 2)
        pixels_or_end = (marker == 0xFFDA) | (marker == 0xFFD9)
        return (at < _length(encoded)) & (marker >= 0xFF00) & ~pixels_or_end & ~is_exif(at)

    def next_segment(at):
        fill = _number(encoded, at, 2) == 0xFFFF
        return [tf.where(fill, at + 1, at + 2 + _number(encoded, at + 2, 2))]

    (at,) = tf.while_loop(goes_on, next_segment, [tf.constant(2, tf.int64)], maximum_iterations=_MOST_PARTS)
    length = tf.maximum(_number(encoded, at + 2, 2) - 8, 0)
    return tf.where(is_exif(at), _part(encoded, at + 10, length), "")


def _exif_of_png(encoded):
    """The first EXIF data before the pixels of a PNG; "" if there is none."""
    at = _png_chunk(encoded, b"eXIf")
    found = _part(encoded, at + 4, 4) == b"eXIf"
    return tf.where(found, _part(encoded, at + 8, _number(encoded, at, 4)), "")


def _orientation(exif):
    """The orientation in EXIF data, as `prepare.orientation.of_exif` reads it."""
    order = _part(exif, 0, 4)
    little = order == b"II*\0"
    start = _number(exif, 4, 4, little)
    known = (little | (order == b"MM\0*")) & (start >= 8)
    entries = _part(exif, start + 2, 12 * _number(exif, start, 2, little))
    whole = tf.strings.substr(entries, 0, tf.strings.length(entries) // 12 * 12)
    tags = tf.reshape(tf.cast(tf.io.decode_raw(whole, tf.uint8), tf.int64), [-1, 12])
    tag, kind, count, value = (
        _integer(tags[:, first:last], little) for first, last in ((0, 2), (2, 4), (4, 8), (8, 10))
    )
    valid = known & (tag == _ORIENTATION_TAG) & (kind == _SHORT) & (count == 1) & (value >= 1) & (value <= 8)
    return tf.cast(tf.concat([tf.boolean_mask(value, valid), [1]], 0)[0], tf.int32)
