"""The first picture of an animated WebP."""

import struct
from collections.abc import Iterator

from tfrank.data.prepare.png_files import Frame

_ANIMATED, _PROFILE, _ALPHA = 2, 32, 16


def first_frame(data: bytes) -> Frame | None:
    """Returns the first picture of an animated WebP; None if it is not animated or is damaged."""
    if data[12:16] != b"VP8X" or len(data) < 30 or not data[20] & _ANIMATED:
        return None
    chunks = list(_chunks(data, 12))
    frame = next((content for name, content in chunks if name == b"ANMF"), b"")
    if len(frame) < 24:
        return None
    # Places are halved, and sizes one less.
    x, y, right, bottom = (int.from_bytes(frame[at : at + 3], "little") for at in (0, 3, 6, 9))
    box = (2 * x, 2 * y, 2 * x + right + 1, 2 * y + bottom + 1)
    profile = [chunk for chunk in chunks if chunk[0] == b"ICCP"][:1]
    pixels = [chunk for chunk in _chunks(frame, 16) if chunk[0] in (b"ALPH", b"VP8 ", b"VP8L")]
    flags = _PROFILE * bool(profile) + _ALPHA * (pixels[:1] != [] and pixels[0][0] != b"VP8 ")
    header = bytes([flags, 0, 0, 0]) + frame[6:12]
    body = b"WEBP" + b"".join(_packed(*chunk) for chunk in [(b"VP8X", header), *profile, *pixels])
    size = tuple(1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    return Frame(b"RIFF" + struct.pack("<I", len(body)) + body, size, box)


def _chunks(data: bytes, position: int) -> Iterator[tuple[bytes, bytes]]:
    while position + 8 <= len(data):
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        yield data[position : position + 4], data[position + 8 : position + 8 + length]
        position += 8 + length + length % 2


def _packed(name, content):
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
