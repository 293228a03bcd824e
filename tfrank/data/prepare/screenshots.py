"""Tells screenshots from photos, by a sure sign: a PNG of a screen's size without a camera's name."""

import io
import struct

from PIL import ExifTags, Image

from tfrank.data.prepare import png_files

# Width and height of common screens: computers, phones and tablets.
_SCREENS = (
    *((1280, 800), (1366, 768), (1440, 900), (1536, 864), (1600, 900), (1680, 1050), (1920, 1080)),
    *((1920, 1200), (2560, 1440), (2560, 1600), (2880, 1800), (3024, 1964), (3440, 1440), (3840, 2160)),
    *((640, 1136), (750, 1334), (828, 1792), (1125, 2436), (1170, 2532), (1179, 2556), (1206, 2622)),
    *((1242, 2208), (1242, 2688), (1284, 2778), (1290, 2796), (1320, 2868), (720, 1600), (1080, 1920)),
    *((1080, 2160), (1080, 2280), (1080, 2340), (1080, 2400), (1440, 2560), (1440, 2960), (1440, 3040)),
    *((1440, 3088), (1440, 3120), (1440, 3200), (1344, 2992), (1536, 2048), (1620, 2160), (1640, 2360)),
    *((1668, 2224), (1668, 2388), (2048, 2732)),
)
SCREENS = {tuple(sorted(screen)) for screen in _SCREENS}


def looks_like_one(data: bytes) -> bool:
    """Returns whether an image file is a PNG as large as a screen that names no camera.

    >>> buffers = [io.BytesIO(), io.BytesIO()]
    >>> Image.new("RGB", (1170, 2532)).save(buffers[0], "PNG")
    >>> Image.new("RGB", (1171, 2532)).save(buffers[1], "PNG")
    >>> [looks_like_one(buffer.getvalue()) for buffer in buffers]
    [True, False]
    """
    if data[:8] != png_files.SIGNATURE or tuple(sorted(struct.unpack_from(">II", data, 16))) not in SCREENS:
        return False
    # As it is read elsewhere: Pillow refuses damages that can be mended.
    with Image.open(io.BytesIO(png_files.mended(data)[0])) as image:
        return ExifTags.Base.Make not in image.getexif()
