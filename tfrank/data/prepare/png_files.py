"""The chunks of a PNG: harmless damage mended, other damage found, and the first picture of an animation."""

import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tfrank.data.prepare.bad_image import BadImage

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Passes of an interlaced PNG: first column and row, and the steps between columns and between rows.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# Chunks that say how the pixels of every picture of an animation are shown.
_SHARED = (b"cICP", b"iCCP", b"sRGB", b"gAMA", b"cHRM", b"PLTE", b"tRNS")

Chunks = list[tuple[bytes, bytes]]


class Frame(NamedTuple):
    """The first picture of an animation.

    Attributes:
        data: a file of that picture alone.
        size: width and height of the animation.
        box: left, top, right and bottom of the picture in it.
    """

    data: bytes
    size: tuple[int, int]
    box: tuple[int, int, int, int]


def mended(data: bytes) -> tuple[bytes, Chunks]:
    """Returns a PNG that every decoder reads, with the same pixels, and its chunks; the same bytes if sound.

    Chunks beside the pixels that are damaged or stand where they may not are left out, as browsers do. The
    chunks of the pixels get right checksums.

    Raises:
        BadImage: header, palette or pixels are damaged.
    """
    chunks = _in_order(list(_sound(data)))
    check_pixels(chunks)
    whole = SIGNATURE + b"".join(packed(*chunk) for chunk in chunks)
    return (data if data.startswith(whole) else whole), chunks


def _sound(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields name and content of the chunks that can be used; BadImage if one that is needed cannot be."""
    position, name = len(SIGNATURE), b""
    while name != b"IEND":
        length = int.from_bytes(data[position : position + 4], "big")
        name = data[position + 4 : position + 8]
        content = data[position + 8 : position + 8 + length]
        checksum = data[position + 8 + length : position + 12 + length]
        right = checksum == zlib.crc32(name + content).to_bytes(4, "big")
        # Whether pixels are damaged shows when they are decompressed. The end has no content.
        needed = name in (b"IHDR", b"PLTE")
        if not name.isalpha() or len(checksum) < 4 or (needed and not right):
            raise BadImage(f"truncated or damaged: the PNG's data after byte {position}")
        position += 12 + length
        if right or not name[0] & 32:
            yield name, b"" if name == b"IEND" else content


def _in_order(chunks: Chunks) -> Chunks:
    """Leaves out palettes and transparency that stand where they may not."""
    names = [name for name, _ in chunks]
    first = names.index(b"IDAT") if b"IDAT" in names else len(names)
    palette = names.index(b"PLTE") if b"PLTE" in names[:first] else -1
    indexed = palette >= 0 and chunks[0][1][9:10] == b"\x03"
    colors = len(chunks[palette][1]) // 3 if indexed else 0

    def stays(place, name, content):
        if name == b"PLTE":
            return place <= first
        if name == b"tRNS":
            return place < first and (not indexed or (palette < place and len(content) <= colors))
        return True

    return [chunk for place, chunk in enumerate(chunks) if stays(place, *chunk)]


def check_pixels(chunks: Chunks) -> None:
    """Raises BadImage for a PNG that TensorFlow refuses but Pillow reads, or that has missing rows."""
    # Names of critical chunks begin with a capital (bit 32 unset); the others are replaced by "-".
    parts = b" ".join(b"-" if name[0] & 32 else name for name, _ in chunks)
    if not re.fullmatch(rb"IHDR( -)*( PLTE)?( -)*( IDAT)+( -)* IEND", parts) or len(chunks[0][1]) != 13:
        raise BadImage("truncated or damaged: a PNG of other parts than a header, a palette and pixels")
    width, height, depth, color, compression, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    palette = dict(chunks).get(b"PLTE", b"")
    odd = compression or filtering or interlace > 1 or not width or not height
    if odd or len(palette) % 3 or (color == 3 and not palette):
        raise BadImage("truncated or damaged: the header or the palette of the PNG")
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 0)
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


def packed(name: bytes, content: bytes) -> bytes:
    """Returns a chunk with length and checksum."""
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def before_pixels(chunks: Chunks) -> dict[bytes, bytes]:
    """Returns the first chunk of each name before the pixels."""
    names = [name for name, _ in chunks]
    return dict(reversed(chunks[: names.index(b"IDAT")]))


def first_frame(chunks: Chunks) -> Frame | None:
    """Returns the first picture of an animation whose first picture is not that of still viewers."""
    head = before_pixels(chunks)
    pictures = int.from_bytes(head.get(b"acTL", b"")[:4], "big")
    if not 0 < pictures < 2**31 or b"fcTL" in head:
        return None
    later = chunks[[name for name, _ in chunks].index(b"IDAT") :]
    controls = [place for place, (name, _) in enumerate(later) if name == b"fcTL"]
    if not controls or len(later[controls[0]][1]) < 20:
        return None
    end = controls[1] if len(controls) > 1 else len(later)
    pixels = b"".join(content[4:] for name, content in later[controls[0] : end] if name == b"fdAT")
    width, height, x, y = struct.unpack_from(">4I", later[controls[0]][1], 4)
    header = struct.pack(">II", width, height) + head[b"IHDR"][8:]
    still = [(b"IHDR", header), *((name, head[name]) for name in _SHARED if name in head)]
    still += [(b"IDAT", pixels), (b"IEND", b"")]
    try:
        check_pixels(still)
    except (BadImage, zlib.error):
        return None
    size = struct.unpack_from(">II", head[b"IHDR"])
    box = (x, y, x + width, y + height)
    return Frame(SIGNATURE + b"".join(packed(*chunk) for chunk in still), size, box)
