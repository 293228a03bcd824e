"""Converts users' image files to bytes that TensorFlow decodes as an image viewer would.

TensorFlow's `decode_image` reads JPEG, PNG, WebP, GIF and BMP, but not all their features: it ignores
orientation and alpha, and refuses or drops other unusual ones. So each file is checked once, here. The few
files that TensorFlow would decode differently than a viewer are written again:

| file | result |
|---|---|
| JPEG, RGB or grayscale | kept byte for byte |
| JPEG, CMYK or YCCK | RGB, as JPEG; the inks are inverted, as Adobe writes and browsers read them |
| PNG of 1 to 8 bits, grayscale, RGB or palette | kept byte for byte |
| PNG or TIFF of 16 bits, grayscale or RGB | value / 257, rounded, as PNG |
| WebP, lossy or lossless | kept byte for byte |
| EXIF orientation other than 1 | turned upright; a JPEG as JPEG, others as PNG |
| alpha, or a colour that is transparent | over white, as PNG |
| animated GIF, WebP, PNG; TIFF of several pages | the first image, as PNG |
| GIF, BMP, TIFF, PPM | as PNG |
| a shorter side above `shorter_side` | shrunk to it; a JPEG as JPEG, others as PNG |
| 12 and 32-bit integers, floats, 16-bit inks or separate planes | `BadImage` |
| HEIC | `BadImage`, which says to convert it |
| empty, of another format, truncated, damaged | `BadImage` |
| a side above `MAX_SIDE`, more than `MAX_PIXELS` or `MAX_BYTES` | `BadImage`, before any memory is taken |

A JPEG is written again with quality 95 and without chroma subsampling. A JPEG that is shrunk is decoded at
1/2, 1/4 or 1/8 by the JPEG decoder if that leaves at least twice the final pixels, then resized with a
Lanczos filter. ICC profiles and gamma are ignored, as TensorFlow ignores them. A file written again has
neither, nor other metadata.
"""

import contextlib
import dataclasses
import io
import math
import re
import struct
import sys
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image

from tfrank.common.checks import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
# Above this Pillow warns of decompression bombs; it is 256 MiB of RGB.
MAX_PIXELS = 89_478_485
# Maximum decoded size: width x height x channels x bytes per sample. An image and its copies take at most
# about four times that.
MAX_BYTES = 3 * MAX_PIXELS
# Number of 16-bit pixels that are converted to 8 bits at a time.
_BAND_PIXELS = 2**18
# The limit of JPEG. TensorFlow reads no PNG with a side above a million.
MAX_SIDE = 65_500
# Quality of a JPEG that is written again.
JPEG_QUALITY = 95
# Brands of ISO files that contain HEIC.
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
# Passes of an interlaced PNG: first column and row, and the steps between columns and between rows.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


class BadImage(InputError):
    """An image file that cannot be used. The message is a short reason; the caller adds the file's name."""


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image as it is stored in a record.

    Attributes:
        encoded: bytes that `tf.io.decode_image(channels=3, expand_animations=False)` decodes.
        format: "jpeg", "png" or "webp".
        width, height: size of the upright image before it was shrunk, in pixels.
        changes: those of "converted", "turned" and "shrunk" that apply; empty if kept byte for byte.
    """

    encoded: bytes
    format: str
    width: int
    height: int
    changes: tuple[str, ...] = ()


def checked_image(data: bytes, *, shorter_side: int = 0) -> ImageFile:
    """Checks an image file by decoding it once, and writes it again if the table of this module says so.

    Args:
        data: the bytes of the file.
        shorter_side: maximum pixels of the shorter side; a larger image is shrunk to it. 0: no limit.

    Raises:
        BadImage: the file has no complete image, or one of a kind that is refused.

    >>> buffer = io.BytesIO()
    >>> Image.new("RGBA", (3, 2)).save(buffer, "PNG")
    >>> image = checked_image(buffer.getvalue())
    >>> image.format, image.width, image.height, image.changes
    ('png', 3, 2, ('converted',))
    >>> checked_image(b"")
    Traceback (most recent call last):
    tfrank.data.prepare.image_files.BadImage: the file is empty
    """
    if not data:
        raise BadImage("the file is empty")
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC:
        raise BadImage("HEIC, whatever its name says: convert it to JPEG")
    with _reasons():
        image = _open(data)
        if image.format in ("JPEG", "MPO"):
            return _checked_jpeg(image, data, shorter_side)
        if image.format == "PNG":
            _check_png(data)
        depth = _rawmode(image)
        image.load()
        convert = ";16" in depth or not _kept(image, data)
        if not (convert or _orientation(image) in _UPRIGHT or _is_large(image, shorter_side)):
            return ImageFile(data, image.format.lower(), *image.size)
        pixels = _eight_bits(image, depth, data) if ";16" in depth else image
        changes = ("converted",) * convert
        return _written(_flat(pixels), _orientation(image), shorter_side, "PNG", changes)


@contextlib.contextmanager
def _reasons() -> Iterator[None]:
    """Turns Pillow's errors into `BadImage` and suppresses its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except BadImage:
        raise
    except Image.UnidentifiedImageError:
        names = ", ".join(FORMATS)
        raise BadImage(f"no image in a known format ({names}), or its header is damaged") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels") from None
    # A damaged file makes parsers raise almost anything: struct.error, SyntaxError, KeyError and more.
    except Exception as error:
        raise BadImage(f"truncated or damaged: {error}") from None


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise BadImage(f"more than {MAX_PIXELS:,} pixels: {width} x {height}")
    if max(width, height) > MAX_SIDE:
        raise BadImage(f"a side of more than {MAX_SIDE:,} pixels: {width} x {height}")
    transparent = "transparency" in image.info or image.mode.endswith("A")
    channels = 4 if transparent else len(image.getbands())
    sample = 2 if ";16" in _rawmode(image) else 1
    if width * height * channels * sample > MAX_BYTES:
        raise BadImage(
            f"more than {MAX_BYTES:,} bytes decoded: {width} x {height} pixels, {channels} channels of"
            f" {sample} bytes"
        )
    return image


def _checked_jpeg(image: Image.Image, data: bytes, shorter_side: int) -> ImageFile:
    if not _has_end(data):
        raise BadImage("truncated or damaged: the end of the JPEG is missing")
    size, orientation = image.size, _orientation(image)
    if image.mode == "CMYK" or orientation in _UPRIGHT or _is_large(image, shorter_side):
        changes = ("converted",) * (image.mode == "CMYK")
        return _written(image, orientation, shorter_side, "JPEG", changes)
    # Decode at reduced size: that checks the whole file but computes few pixels.
    image.draft(image.mode, (max(1, size[0] // 8), max(1, size[1] // 8)))
    image.load()
    return ImageFile(data, "jpeg", *size)


def _is_large(image: Image.Image, shorter_side: int) -> bool:
    return 0 < shorter_side < min(image.size)


def _has_end(data: bytes) -> bool:
    """Returns whether the segments of a JPEG lead to its end marker.

    Pillow ignores what follows the last row of pixels, but TensorFlow reads up to the end marker.
    """
    position = 2
    while marker := _JPEG_MARKER.search(data, position):
        if marker[0] == b"\xff\xd9":
            return True
        # A segment begins with its length. Search for the next marker after the segment.
        position = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return False


def _check_png(data: bytes) -> None:
    """Raises BadImage for a PNG that TensorFlow refuses but Pillow reads, or that has missing rows."""
    chunks = list(_png_chunks(data))
    # Names of critical chunks begin with a capital (bit 32 unset); the others are replaced by "-".
    parts = b" ".join(b"-" if name[0] & 32 else name for name, _ in chunks)
    if not re.fullmatch(rb"IHDR( -)*( PLTE)?( -)*( IDAT)+( -)* IEND", parts):
        raise BadImage("truncated or damaged: a PNG of other parts than a header, a palette and pixels")
    width, height, depth, color, compression, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    palette = dict(chunks).get(b"PLTE", b"")
    if compression or filtering or interlace > 1 or len(palette) % 3 or (color == 3 and not palette):
        raise BadImage("truncated or damaged: the header or the palette of the PNG")
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    passes = _ADAM7 if interlace else ((0, 0, 1, 1),)
    expected = sum(
        len(range(top, height, down)) * (1 + (columns * bits + 7) // 8)
        for left, top, right, down in passes
        if (columns := len(range(left, width, right)))
    )
    inflate, count = zlib.decompressobj(), 0
    for name, content in chunks:
        while name == b"IDAT" and content and count <= expected:
            count += len(inflate.decompress(content, 2**20))
            content = inflate.unconsumed_tail
    if count != expected or not inflate.eof:
        raise BadImage("truncated or damaged: the PNG does not have the pixels that its header promises")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields name and content of each chunk; raises BadImage if one is damaged or missing."""
    position, name = 8, b""
    while name != b"IEND":
        length = int.from_bytes(data[position : position + 4], "big")
        name = data[position + 4 : position + 8]
        content = data[position + 8 : position + 8 + length]
        checksum = data[position + 8 + length : position + 12 + length]
        if checksum != zlib.crc32(name + content).to_bytes(4, "big") or not name.isalpha():
            raise BadImage(f"truncated or damaged: the PNG's data after byte {position}")
        position += 12 + length
        yield name, content


def _rawmode(image: Image.Image) -> str:
    """Returns Pillow's name of the pixel format in the file; it contains ";16" for 16 bits."""
    if not image.tile:
        return ""
    args = image.tile[0].args
    rawmode = args if isinstance(args, str) else str(args[0])
    bits = getattr(image, "tag_v2", {}).get(ExifTags.Base.BitsPerSample, ())
    if max(bits, default=8) > 8 and ";" not in rawmode:
        # Pillow would read each byte as a value.
        raise BadImage("a TIFF of more than 8 bits in separate planes: write it with 8 bits")
    return rawmode


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    # The metadata is damaged, but the image is complete. TensorFlow ignores metadata too.
    except Exception:
        return 1


def _kept(image: Image.Image, data: bytes) -> bool:
    """Returns whether the file is a PNG or WebP that TensorFlow decodes as a viewer shows it."""
    if image.has_transparency_data or getattr(image, "is_animated", False):
        return False
    # TensorFlow refuses a WebP animation even if it has only one image.
    still = data[12:16] != b"VP8X" or not data[20] & 2
    return image.format == "PNG" or (image.format == "WEBP" and still)


def _eight_bits(image: Image.Image, rawmode: str, data: bytes) -> Image.Image:
    """Converts 16-bit values to value / 257, rounded; Pillow would keep the high byte or clip at 255."""
    width, height = image.size
    again = None if image.mode.startswith("I;16") else _other_bytes(rawmode, data)
    transparent, bands = image.info.get("transparency"), []
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        values = _sixteen_bits(image.crop(box), again and again.crop(box), rawmode)
        band = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        if transparent is not None:
            opaque = (values != transparent).any(axis=2, keepdims=True)
            band = np.concatenate([band, np.uint8(255) * opaque], axis=2)
        bands.append(Image.fromarray(band[:, :, 0] if band.shape[2] == 1 else band))
    result = Image.new(bands[0].mode, image.size)
    for number, band in enumerate(bands):
        result.paste(band, (0, number * rows))
    return result


def _other_bytes(rawmode: str, data: bytes) -> Image.Image:
    """Reads the low bytes of a colour image's 16-bit values, as Pillow unpacks the high bytes only.

    Reading the image again in the other byte order gives the low bytes. Gray with alpha is read as four bytes
    per pixel, which are the high and low bytes of both.
    """
    other = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    again = _open(data)
    if rawmode == "LA;16B":
        _unpack_as(again, "RGBA")
    elif rawmode[:-1] in ("RGB;16", "RGBA;16"):
        _unpack_as(again, rawmode[:-1] + other[rawmode[-1]])
    else:
        raise BadImage(f"16-bit pixels of the kind {rawmode}: write it again with 8 bits")
    again.load()
    return again


def _sixteen_bits(image: Image.Image, again: Image.Image | None, rawmode: str) -> np.ndarray:
    """Returns `[height, width, channels]` 16-bit values; `again` has the low bytes, see `_other_bytes`."""
    if again is None:
        return np.asarray(image)[:, :, None]
    low = np.asarray(again)
    if rawmode == "LA;16B":
        return low[:, :, ::2].astype(np.uint16) * 256 + low[:, :, 1::2]
    return np.asarray(image).astype(np.uint16) * 256 + low


def _unpack_as(image: Image.Image, rawmode: str) -> None:
    image.tile = [
        tile._replace(args=rawmode if isinstance(tile.args, str) else (rawmode, *tile.args[1:]))
        for tile in image.tile
    ]


def _flat(image: Image.Image) -> Image.Image:
    """Converts an image to grayscale or RGB, with transparency over white."""
    if image.mode[0] in "IF":
        raise BadImage("12 or 32-bit integers or floats, of which white is not known: write it with 8 bits")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _written(
    image: Image.Image, orientation: int, shorter_side: int, format: str, changes: tuple[str, ...]
) -> ImageFile:
    """Shrinks a large image, converts it to grayscale or RGB, turns it upright, and encodes it."""
    size = image.size
    if _is_large(image, shorter_side):
        # The shorter side is exact; `thumbnail` rounds the other, to at most this bound.
        bounds = [math.ceil(side * shorter_side / min(size)) for side in size]
        image.thumbnail(bounds, Image.Resampling.LANCZOS)
        changes = (*changes, "shrunk")
    image = _flat(image)
    if orientation in _UPRIGHT:
        image, changes = image.transpose(_UPRIGHT[orientation]), (*changes, "turned")
        size = size[::-1] if orientation > 4 else size
    # Otherwise Pillow copies the ICC profile of the old file into the new one.
    image.info = {}
    buffer = io.BytesIO()
    options = {"quality": JPEG_QUALITY, "subsampling": 0} if format == "JPEG" else {}
    image.save(buffer, format, **options)
    return ImageFile(buffer.getvalue(), format.lower(), *size, changes)
