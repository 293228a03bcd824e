"""The orientation of a picture, from the places that browsers heed.

These are EXIF in a JPEG, the chunk eXIf before the pixels of a PNG, EXIF or the equal properties of an AVIF,
and the tag of a TIFF. XMP, and EXIF in a WebP or after the pixels of a PNG, turn no picture in a browser.
"""

import struct
from collections.abc import Iterator

from PIL import Image

TAG, SHORT = 0x0112, 3
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The segment of a JPEG that precedes the pixels, and the one that ends it.
_PIXELS, _END = 0xDA, 0xD9
_APP1 = 0xE1


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Turns an image upright by its orientation."""
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def of_jpeg(data: bytes) -> int:
    """Returns the orientation of a JPEG, 1 to 8; the first EXIF segment counts."""
    segments = jpeg_segments(data)
    return of_exif(next((part for marker, part in segments if marker == _APP1 and _is_exif(part)), b"")[6:])


def jpeg_segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields marker and content of each segment of a JPEG up to its pixels."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # Filling.
            position += 1
            continue
        if marker in (_PIXELS, _END):
            return
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        yield marker, data[position + 4 : position + 2 + length]
        position += 2 + length


def of_exif(exif: bytes) -> int:
    """Returns the orientation in EXIF data, 1 to 8: the first tag with one integer of 16 bits in that range.

    >>> of_exif(b"II*\\0\\x08\\0\\0\\0\\1\\0" + struct.pack("<HHIHH", TAG, SHORT, 1, 6, 0))
    6
    >>> of_exif(b"no EXIF")
    1
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return 1
    (start,) = struct.unpack_from(order + "I", exif, 4)
    if start < 8 or start + 2 > len(exif):
        return 1
    (count,) = struct.unpack_from(order + "H", exif, start)
    for at in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        tag, kind, number, value = struct.unpack_from(order + "HHIH", exif, at)
        if (tag, kind, number) == (TAG, SHORT, 1) and 1 <= value <= 8:
            return value
    return 1


def _is_exif(segment: bytes) -> bool:
    return segment[:5] == b"Exif\0" and segment[5:6] in (b"\0", b"\xff")
