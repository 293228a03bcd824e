"""Converts users' image files to bytes that TensorFlow decodes as a browser would show them.

TensorFlow's `decode_image` reads JPEG, PNG, WebP, GIF and BMP, but not all their features: it ignores
orientation, alpha and colour profiles, and refuses or drops other unusual ones. So each file is checked once,
here. The few files that TensorFlow would decode differently than a browser are written again:

| file | result |
|---|---|
| JPEG, RGB or grayscale | kept byte for byte |
| JPEG, CMYK or YCCK | RGB by its profile, or without one (1 - ink) (1 - black), as JPEG |
| PNG of 1 to 8 bits, grayscale, RGB or palette | kept byte for byte |
| PNG with damage beside the pixels: checksums, order, no end | the same pixels, as a sound PNG |
| PNG or TIFF of 16 bits, grayscale or RGB; PPM | value / 257, rounded, as PNG |
| WebP, lossy or lossless | kept byte for byte |
| colours other than sRGB: a profile, or a PNG's gAMA, cHRM, cICP | converted; a JPEG as JPEG, others as PNG |
| an orientation other than 1, where browsers heed it | turned upright; a JPEG as JPEG, others as PNG |
| alpha, or a colour that is transparent | over white, as PNG |
| animated GIF, WebP, PNG, AVIF; TIFF of several pages | the first image, on white, as PNG |
| AVIF, GIF, BMP, TIFF, PPM | as PNG |
| a shorter side above `shorter_side` | shrunk to it; a JPEG as JPEG, others as PNG |
| 12 and 32-bit integers, signed ones, floats, 16 bits in separate planes | `BadImage` |
| HEIC | `BadImage`, which says to convert it |
| empty, of another format, truncated, damaged | `BadImage` |
| a side above `MAX_SIDE`, more than `MAX_PIXELS` or `MAX_BYTES` | `BadImage`, before any memory is taken |

`colors` says which profiles count, `orientation` which orientations, `png_files` which damage is harmless.
The reference is Chromium, and ImageMagick for TIFF and PPM; `benchmarks.pictures` compares with both.

A JPEG is written again with quality 95 and without chroma subsampling. A JPEG that is shrunk is decoded at
1/2, 1/4 or 1/8 by the JPEG decoder if that leaves at least twice the final pixels, then resized with a
Lanczos filter. A file written again has no profile nor other metadata.
"""

import contextlib
import dataclasses
import io
import math
import re
import struct
import warnings
from collections.abc import Iterator

from PIL import Image

from tfrank.data.prepare import bmp_files, colors, orientation, png_files, sixteen_bits, webp_files
from tfrank.data.prepare.bad_image import BadImage, TooLarge

__all__ = ["FORMATS", "BadImage", "ImageFile", "TooLarge", "checked_image", "size_of"]

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
# Above this Pillow warns of decompression bombs; it is 256 MiB of RGB.
MAX_PIXELS = 89_478_485
# Maximum decoded size: width x height x channels x bytes per sample. An image and its copies take at most
# about four times that.
MAX_BYTES = 3 * MAX_PIXELS
# The limit of JPEG. TensorFlow reads no PNG with a side above a million.
MAX_SIDE = 65_500
# Quality of a JPEG that is written again.
JPEG_QUALITY = 95
# Shorter side in pixels to which users' own photos are shrunk: twice the usual input size of networks.
SHORTER_SIDE = 512
# Brands of ISO files that contain HEIC.
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")


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


@dataclasses.dataclass(frozen=True)
class _Picture:
    """A picture that is opened, and how it is to be shown.

    Attributes:
        image: not yet loaded.
        data: the file, mended if its damage was harmless.
        profile: its colour profile.
        turn: its orientation, 1 to 8.
        frame: the place of the picture in an animation, if it does not cover it all.
    """

    image: Image.Image
    data: bytes
    profile: bytes | None = None
    turn: int = 1
    frame: png_files.Frame | None = None


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
    tfrank.data.prepare.bad_image.BadImage: the file is empty
    """
    with _reasons():
        picture = _opened(data)
        if picture.image.format in ("JPEG", "MPO"):
            return _checked_jpeg(picture, shorter_side)
        return _checked_other(picture, data, shorter_side)


def size_of(data: bytes) -> tuple[int, int]:
    """Returns width and height by the header of an image file; decodes nothing.

    Raises:
        BadImage: it is no image file that can be used; `TooLarge` if it has too many pixels.
    """
    with _reasons():
        if data[:8] == png_files.SIGNATURE:
            return _within_limits(struct.unpack_from(">II", data, 16))
        return bmp_files.size_of(data) or _open(data).size


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
        raise TooLarge(f"more than {MAX_PIXELS:,} pixels") from None
    # A damaged file makes parsers raise almost anything: struct.error, SyntaxError, KeyError and more.
    except Exception as error:
        raise BadImage(f"truncated or damaged: {error}") from None


def _opened(data: bytes) -> _Picture:
    """Opens a file as browsers do: by its content, whatever its name."""
    if not data:
        raise BadImage("the file is empty")
    brands = data[8 : min(64, int.from_bytes(data[:4], "big"))]
    if data[4:8] == b"ftyp" and data[8:12] in _HEIC and b"avif" not in brands:
        raise BadImage("HEIC, whatever its name says: convert it to JPEG")
    if data[:8] == png_files.SIGNATURE:
        return _opened_png(data)
    if (frame := webp_files.first_frame(data)) is not None:
        _within_limits(frame.size)
        image = _open(frame.data)
        return _Picture(image, data, image.info.get("icc_profile"), frame=frame)
    if size := bmp_files.size_of(data):
        _within_limits(size)
        return _Picture(bmp_files.decoded(data) or _open(data), data, bmp_files.profile_of(data))
    image = _open(data)
    if image.format == "GIF":
        box = image.tile[0].extents
        frame = None if box == (0, 0, *image.size) else png_files.Frame(data, image.size, box)
        return _Picture(image, data, frame=frame)
    return _Picture(image, data, image.info.get("icc_profile"), _turn(image, data))


def _opened_png(data: bytes) -> _Picture:
    width, height, depth, color = struct.unpack_from(">IIBB", data, 16)
    channels = {2: 3, 4: 4, 6: 4}.get(color, 1)
    _check_bytes(_within_limits((width, height)), channels, 2 if depth == 16 else 1)
    whole, chunks = png_files.mended(data)
    head, frame = png_files.before_pixels(chunks), png_files.first_frame(chunks)
    turn = orientation.of_exif(head.get(b"eXIf", b""))
    return _Picture(_open(frame.data if frame else whole), whole, colors.png_profile(head), turn, frame)


def _turn(image, data):
    """The orientation of an image that is no PNG, 1 to 8."""
    if image.format in ("JPEG", "MPO"):
        return orientation.of_jpeg(data)
    if image.format == "AVIF":
        # Pillow states the file's own properties as EXIF.
        return orientation.of_exif(image.info.get("exif", b"").removeprefix(b"Exif\0\0"))
    # Pillow turns a TIFF itself.
    return 1


def _open(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    transparent = "transparency" in image.info or image.mode.endswith("A")
    channels = 4 if transparent else len(image.getbands())
    sample = 2 if sixteen_bits.has_16_bits(image, sixteen_bits.rawmode_of(image)) else 1
    _check_bytes(_within_limits(image.size), channels, sample)
    return image


def _check_bytes(size, channels, sample):
    width, height = size
    if width * height * channels * sample > MAX_BYTES:
        raise BadImage(
            f"more than {MAX_BYTES:,} bytes decoded: {width} x {height} pixels, {channels} channels of"
            f" {sample} bytes"
        )


def _within_limits(size):
    width, height = size
    if width * height > MAX_PIXELS:
        raise TooLarge(f"more than {MAX_PIXELS:,} pixels: {width} x {height}")
    if max(width, height) > MAX_SIDE:
        raise BadImage(f"a side of more than {MAX_SIDE:,} pixels: {width} x {height}")
    return width, height


def _checked_jpeg(picture: _Picture, shorter_side: int) -> ImageFile:
    if not _has_end(picture.data):
        raise BadImage("truncated or damaged: the end of the JPEG is missing")
    image = picture.image
    convert = image.mode == "CMYK" or colors.transform_of(picture.profile, image.mode) is not None
    if convert or picture.turn in orientation.UPRIGHT or _is_large(image, shorter_side):
        return _written(picture, image, shorter_side, "JPEG", ("converted",) * convert)
    # Decode at reduced size: that checks the whole file but computes few pixels.
    size = image.size
    image.draft(image.mode, (max(1, size[0] // 8), max(1, size[1] // 8)))
    image.load()
    return ImageFile(picture.data, "jpeg", *size)


def _checked_other(picture: _Picture, data: bytes, shorter_side: int) -> ImageFile:
    image = picture.image
    rawmode = sixteen_bits.rawmode_of(image)
    deep = sixteen_bits.has_16_bits(image, rawmode)
    image.load()
    convert = deep or not _kept(picture)
    if not (convert or picture.turn in orientation.UPRIGHT or _is_large(image, shorter_side)):
        changes = () if picture.data is data else ("converted",)
        return ImageFile(picture.data, image.format.lower(), *image.size, changes)
    profile = picture.profile
    if deep:
        source = picture.frame.data if picture.frame else picture.data
        image, profile = sixteen_bits.to_eight_bits(image, rawmode, lambda: _open(source), profile), None
    image = _on_canvas(_flat(image, profile), picture.frame)
    picture = dataclasses.replace(picture, profile=None)
    return _written(picture, image, shorter_side, "PNG", ("converted",) * convert)


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


def _kept(picture: _Picture) -> bool:
    """Returns whether the file is a PNG or WebP that TensorFlow decodes as a browser shows it."""
    image = picture.image
    if image.has_transparency_data or getattr(image, "is_animated", False) or picture.frame:
        return False
    mode = "L" if image.mode in ("1", "L") else "RGB"
    return image.format in ("PNG", "WEBP") and colors.transform_of(picture.profile, mode) is None


def _flat(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Converts an image to grayscale or RGB of sRGB, with transparency over white."""
    if image.mode[0] in "IF":
        raise BadImage("12 or 32-bit integers or floats, of which white is not known: write it with 8 bits")
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    if image.mode not in ("CMYK", "LAB"):
        image = image.convert("L" if image.mode in ("1", "L") else "RGB")
    image = colors.to_srgb(image, profile)
    if alpha is not None:
        image = Image.composite(image, Image.new("RGB", image.size, "white"), alpha)
    return image


def _on_canvas(image: Image.Image, frame: png_files.Frame | None) -> Image.Image:
    """Puts the first picture of an animation on white at its place."""
    if frame is None:
        return image
    canvas = Image.new("RGB", frame.size, "white")
    if image.size == frame.size:
        # Pillow has put it there already, on a colour that browsers do not show.
        image = image.crop(frame.box)
    canvas.paste(image, frame.box[:2])
    return canvas


def _written(
    picture: _Picture, image: Image.Image, shorter_side: int, format: str, changes: tuple[str, ...]
) -> ImageFile:
    """Shrinks a large image, converts its colours, turns it upright, and encodes it."""
    size = image.size
    if _is_large(image, shorter_side):
        # The shorter side is exact; `thumbnail` rounds the other, to at most this bound.
        bounds = [math.ceil(side * shorter_side / min(size)) for side in size]
        image.thumbnail(bounds, Image.Resampling.LANCZOS)
        changes = (*changes, "shrunk")
    image = colors.to_srgb(image, picture.profile)
    if picture.turn in orientation.UPRIGHT:
        image, changes = orientation.turned(image, picture.turn), (*changes, "turned")
        size = size[::-1] if picture.turn > 4 else size
    # Otherwise Pillow copies the ICC profile of the old file into the new one.
    image.info = {}
    buffer = io.BytesIO()
    options = {"quality": JPEG_QUALITY, "subsampling": 0} if format == "JPEG" else {}
    image.save(buffer, format, **options)
    return ImageFile(buffer.getvalue(), format.lower(), *size, changes)
