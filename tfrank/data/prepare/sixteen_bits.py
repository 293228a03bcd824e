"""Pictures of 16 bits a value to 8 bits: value / 257, rounded, after their colours are converted to sRGB.

Pillow would keep the high byte, clip at 255, or keep a negative.
"""

import re
import sys
from collections.abc import Callable

import numpy as np
from PIL import ExifTags, Image

from tfrank.data.prepare import colors
from tfrank.data.prepare.bad_image import BadImage

# Number of pixels that are converted at a time.
BAND_PIXELS = 2**18
# Of inks, and of colours with other fourth values, Pillow's high byte is near enough.
_KINDS = re.compile(r"(I|L|LA|RGB|RGBA);16[LBNR]?")
_MIN_IS_WHITE = 0


def rawmode_of(image: Image.Image) -> str:
    """Returns Pillow's name of the pixel format in the file."""
    if not getattr(image, "tile", None):
        return ""
    args = image.tile[0].args
    rawmode = args if isinstance(args, str) else str(args[0] if args else "")
    bits = getattr(image, "tag_v2", {}).get(ExifTags.Base.BitsPerSample, ())
    if max(bits, default=8) > 8 and ";" not in rawmode:
        # Pillow would read each byte as a value.
        raise BadImage("a TIFF of more than 8 bits in separate planes: write it with 8 bits")
    return rawmode


def has_16_bits(image: Image.Image, rawmode: str) -> bool:
    """Returns whether the values of a picture have 16 bits."""
    # Pillow scales the values of a PGM to this range.
    gray_of_ppm = image.format == "PPM" and image.mode == "I"
    return gray_of_ppm or _KINDS.fullmatch(rawmode) is not None


def to_eight_bits(
    image: Image.Image, rawmode: str, reopened: Callable[[], Image.Image], profile: bytes | None
) -> Image.Image:
    """Converts a picture of 16 bits to 8 bits of sRGB, with its alpha.

    Args:
        image: the loaded picture.
        rawmode: its pixel format, from `rawmode_of` before it was loaded.
        reopened: opens the file again.
        profile: its colour profile.
    """
    width, height = image.size
    again = None if image.mode[0] == "I" else _other_bytes(rawmode, reopened())
    inverted = getattr(image, "tag_v2", {}).get(ExifTags.Base.PhotometricInterpretation) == _MIN_IS_WHITE
    transparent, bands = image.info.get("transparency"), []
    rows = max(1, BAND_PIXELS // width)
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        values = _sixteen_bits(image.crop(box), again and again.crop(box), rawmode)
        bands.append(_band(65535 - values if inverted else values, transparent, profile))
    result = Image.new(bands[0].mode, image.size)
    for number, band in enumerate(bands):
        result.paste(band, (0, number * rows))
    return result


def _band(values, transparent, profile):
    """An image of 8 bits of `[height, width, channels]` 16-bit values."""
    alphas = values.shape[2] in (2, 4)
    color = values[:, :, : values.shape[2] - alphas]
    band = colors.sixteen_bits_to_srgb(color, profile)
    if alphas:
        band = np.concatenate([band, colors.sixteen_bits_to_srgb(values[:, :, -1:], None)], axis=2)
    elif transparent is not None:
        opaque = (values != transparent).any(axis=2, keepdims=True)
        band = np.concatenate([band, np.uint8(255) * opaque], axis=2)
    return Image.fromarray(band[:, :, 0] if band.shape[2] == 1 else band)


def _other_bytes(rawmode: str, again: Image.Image) -> Image.Image:
    """Reads the low bytes of a colour image's 16-bit values, as Pillow unpacks the high bytes only.

    Reading the image again in the other byte order gives the low bytes. Gray with alpha is read as four bytes
    per pixel, which are the high and low bytes of both.
    """
    other = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
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
        return np.asarray(image).astype(np.uint16)[:, :, None]
    low = np.asarray(again)
    if rawmode == "LA;16B":
        return low[:, :, ::2].astype(np.uint16) * 256 + low[:, :, 1::2]
    return np.asarray(image).astype(np.uint16) * 256 + low


def _unpack_as(image: Image.Image, rawmode: str) -> None:
    image.tile = [
        tile._replace(args=rawmode if isinstance(tile.args, str) else (rawmode, *tile.args[1:]))
        for tile in image.tile
    ]
