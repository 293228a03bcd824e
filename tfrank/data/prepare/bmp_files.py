"""Bitmaps (BMP) that Pillow refuses or shows otherwise than browsers: bit fields and run lengths."""

import struct
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfrank.data.prepare.bad_image import BadImage

_RLE8, _RLE4, _FIELDS, _ALPHA_FIELDS = 1, 2, 3, 6
_FILE_HEADER, _OLDEST, _V3, _V5 = 14, 40, 56, 124
_EMBEDDED = b"DEBM"


class _Header(NamedTuple):
    """What the header of a bitmap says."""

    size: int
    width: int
    height: int
    bits: int
    compression: int
    colors: int
    pixels: int
    upside_down: bool


def profile_of(data: bytes) -> bytes | None:
    """Returns the colour profile that a bitmap contains."""
    header = _header(data)
    if header is None or header.size < _V5 or data[70:74] != _EMBEDDED:
        return None
    start, length = struct.unpack_from("<II", data, _FILE_HEADER + 112)
    return data[_FILE_HEADER + start : _FILE_HEADER + start + length]


def decoded(data: bytes) -> Image.Image | None:
    """Returns the picture of a bitmap of bit fields or run lengths, RGB or RGBA; None for other kinds."""
    header = _header(data)
    if header is None or header.width <= 0 or header.height <= 0:
        return None
    if header.compression in (_FIELDS, _ALPHA_FIELDS) and header.bits in (16, 32):
        pixels = _of_fields(data, header)
    elif (header.compression, header.bits) in ((_RLE8, 8), (_RLE4, 4)):
        pixels = _of_runs(data, header)
    else:
        return None
    return Image.fromarray(pixels if header.upside_down else pixels[::-1])


def size_of(data: bytes) -> tuple[int, int] | None:
    """Returns width and height of a bitmap that `decoded` may read."""
    header = _header(data)
    return header and (header.width, header.height)


def _header(data):
    if data[:2] != b"BM" or len(data) < _FILE_HEADER + _OLDEST:
        return None
    (pixels,) = struct.unpack_from("<I", data, 10)
    size, width, height, _, bits, compression, _, _, _, colors, _ = struct.unpack_from(
        "<IiiHHIIiiII", data, 14
    )
    if size < _OLDEST:
        return None
    return _Header(size, width, abs(height), bits, compression, colors, pixels, height < 0)


def _of_fields(data, header):
    """`[height, width, 3 or 4]` of pixels whose channels are given by masks."""
    masked = 4 if header.compression == _ALPHA_FIELDS or header.size >= _V3 else 3
    masks = [mask for mask in struct.unpack_from(f"<{masked}I", data, _FILE_HEADER + _OLDEST)]
    if not all(masks[:3]):
        raise BadImage("truncated or damaged: the masks of the bitmap")
    sample = header.bits // 8
    stride = (header.width * sample + 3) // 4 * 4
    rows = data[header.pixels : header.pixels + stride * header.height]
    if len(rows) < stride * header.height:
        raise BadImage("truncated or damaged: the rows of the bitmap")
    values = np.frombuffer(rows, np.uint8).reshape(header.height, stride)[:, : header.width * sample]
    values = np.ascontiguousarray(values).view(f"<u{sample}")
    channels = []
    for mask in masks if masked == 4 and masks[3] else masks[:3]:
        shift = (mask & -mask).bit_length() - 1
        part = (values & values.dtype.type(mask & (2**header.bits - 1))) >> values.dtype.type(shift)
        channels.append(np.round(part * (255 / (mask >> shift))).astype(np.uint8))
    return np.stack(channels, axis=2)


def _of_runs(data, header):
    """`[height, width, 3]` of pixels by run lengths; those that no run reaches are black."""
    start = _FILE_HEADER + header.size
    count = min(header.colors or 256, 256, max(0, header.pixels - start) // 4)
    palette = np.zeros([256, 3], np.uint8)
    table = np.frombuffer(data[start : start + 4 * count], np.uint8).reshape(-1, 4)
    palette[: len(table)] = table[:, 2::-1]
    pixels = np.zeros([header.height * header.width, 3], np.uint8)
    for first, values in _runs(data, header):
        pixels[first : first + len(values)] = palette[values]
    return pixels.reshape(header.height, header.width, 3)


def _runs(data, header):
    """Yields the place of the first pixel of each run, and its values."""
    at, x, y, width = header.pixels, 0, 0, header.width
    while at + 1 < len(data) and y < header.height:
        count, value = data[at], data[at + 1]
        at += 2
        if count:
            run = (
                np.full(count, value, np.uint8) if header.bits == 8 else _halves([value] * ((count + 1) // 2))
            )
        elif value == 0:
            x, y = 0, y + 1
            continue
        elif value == 1:
            return
        elif value == 2:
            if at + 1 >= len(data):
                return
            x, y, at = x + data[at], y + data[at + 1], at + 2
            continue
        else:
            count = value
            length = count if header.bits == 8 else (count + 1) // 2
            run = np.frombuffer(data[at : at + length], np.uint8)
            run = run if header.bits == 8 else _halves(run)
            at += length + length % 2
        run = run[: min(count, max(0, width - x))]
        if len(run):
            yield y * width + x, run
        x += count


def _halves(values):
    """The high and the low four bits of each byte."""
    values = np.asarray(values, np.uint8)
    return np.stack([values >> 4, values & 15], axis=1).ravel()
