"""Colours of image files to sRGB, by the profile or the properties that the file states, as browsers do.

A profile counts if it is of the kind of the pixels: gray, RGB or CMYK; one of RGB counts for gray too.
Others, and damaged ones, are ignored. Of the chunks of a PNG the first of these counts: cICP, iCCP, sRGB, and
gAMA, with cHRM or alone. HDR curves (PQ, HLG) are ignored. Conversion is relative colorimetric.
"""

import functools
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageCms

# An image is not converted if that changes colours by less than this on average, of 255.
TOLERANCE = 1
_MOST_PROFILE = 2**22
_LEAST_GAMMA = 0.02
_SRGB = ImageCms.createProfile("sRGB")
_GRID = 9
_D50 = (0.9642, 1.0, 0.8249)
# Bradford's cones, by which colours are adapted from one white to another.
_CONES = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_D65 = (0.3127, 0.3290)
# Chromaticities of white, red, green and blue of sRGB, as chunk cHRM has them.
_PRIMARIES = (*_D65, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
# The same by their numbers in chunk cICP (ITU-T H.273).
_CODED_PRIMARIES = {
    1: _PRIMARIES,
    4: (0.310, 0.316, 0.67, 0.33, 0.21, 0.71, 0.14, 0.08),
    5: (*_D65, 0.64, 0.33, 0.29, 0.60, 0.15, 0.06),
    6: (*_D65, 0.630, 0.340, 0.310, 0.595, 0.155, 0.070),
    7: (*_D65, 0.630, 0.340, 0.310, 0.595, 0.155, 0.070),
    9: (*_D65, 0.708, 0.292, 0.170, 0.797, 0.131, 0.046),
    11: (0.314, 0.351, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),
    12: (*_D65, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),
}
# Parameters g, a, b, c, d of ICC's curve (a x + b)^g from d on, c x before.
_SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
# Video is shown as on a monitor of studios (ITU-R BT.1886), not by the inverse of the camera's curve.
_VIDEO_CURVE = (2.4, 1, 0, 0, 0)
_CODED_CURVES = {
    1: _VIDEO_CURVE,
    4: (2.2, 1, 0, 0, 0),
    5: (2.8, 1, 0, 0, 0),
    6: _VIDEO_CURVE,
    7: (1 / 0.45, 1 / 1.1115, 0.1115 / 1.1115, 1 / 4, 0.0912),
    8: (1, 1, 0, 0, 0),
    11: _VIDEO_CURVE,
    13: _SRGB_CURVE,
    14: _VIDEO_CURVE,
    15: _VIDEO_CURVE,
    17: (2.6, (52.37 / 48) ** (1 / 2.6), 0, 0, 0),
}


def png_profile(chunks: dict[bytes, bytes]) -> bytes | None:
    """Returns the profile of a PNG, made from its properties if it has none; None: sRGB.

    Args:
        chunks: the chunks before the pixels by name.
    """
    if coded := _coded(chunks.get(b"cICP", b"")):
        return rgb_profile(*coded)
    if profile := _unpacked(chunks.get(b"iCCP", b"")):
        return profile
    if b"sRGB" in chunks:
        return None
    gamma, chromaticities = chunks.get(b"gAMA", b""), chunks.get(b"cHRM", b"")
    gamma = int.from_bytes(gamma, "big") / 1e5 if len(gamma) == 4 else 0
    primaries = tuple(np.frombuffer(chromaticities, ">u4") / 1e5) if len(chromaticities) == 32 else ()
    known = bool(primaries) and all(0 < value < 1 for value in primaries)
    # A gamma of 1 / 2.2 alone is what old programs write for sRGB.
    if gamma < _LEAST_GAMMA or (not known and abs(gamma - 1 / 2.2) < 0.001):
        return None
    return rgb_profile(primaries if known else _PRIMARIES, (1 / gamma, 1, 0, 0, 0))


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Converts a grayscale, RGB, CMYK or Lab image to grayscale or RGB of sRGB.

    CMYK without a profile of its own becomes (1 - ink) (1 - black), as in browsers.
    """
    if image.mode == "LAB":
        return ImageCms.profileToProfile(image, ImageCms.createProfile("LAB"), _SRGB, outputMode="RGB")
    transform = transform_of(profile, image.mode)
    if transform is None:
        return image if image.mode in ("L", "RGB") else image.convert("RGB")
    grayscale = image.mode == "L"
    if image.mode != transform.input_mode:
        image = image.convert(transform.input_mode)
    image = transform.apply(image)
    return image.convert("L") if grayscale else image


def sixteen_bits_to_srgb(values: np.ndarray, profile: bytes | None) -> np.ndarray:
    """Returns `[height, width, channels]` uint8 of 16-bit values of 1 or 3 channels, rounded.

    Between the 256 values that profiles are applied to, colours are interpolated.
    """
    transform = transform_of(profile, "L" if values.shape[2] == 1 else "RGB")
    if transform is None:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    low, rest = np.divmod(values, 257)
    ends = []
    for part in (low, np.minimum(low + 1, 255)):
        pixels = part.astype(np.uint8)
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        shown = np.asarray(to_srgb(image, profile), np.float32)
        ends.append(shown.reshape(values.shape))
    return np.round(ends[0] + (ends[1] - ends[0]) * (rest / np.float32(257))).astype(np.uint8)


@functools.lru_cache(maxsize=32)
def transform_of(profile: bytes | None, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Returns the transform from a profile to sRGB; None if there is none to apply.

    Args:
        profile: a profile of any kind, maybe damaged.
        mode: Pillow's mode of the pixels, "L", "RGB" or "CMYK".
    """
    if not profile:
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space, pcs = source.profile.xcolor_space.strip(), source.profile.connection_space.strip()
        modes = {("RGB", "L"): "RGB", ("RGB", "RGB"): "RGB", ("CMYK", "CMYK"): "CMYK", ("GRAY", "L"): "L"}
        takes = modes.get((space, mode))
        if takes is None or (takes == "L" and pcs == "Lab"):
            return None
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        transform = ImageCms.buildTransform(source, _SRGB, takes, "RGB", intent, ImageCms.Flags.NONE)
    # Pillow raises its own error, and others for damaged profiles.
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError, AttributeError):
        return None
    if takes == "CMYK":
        return transform
    probe = _probe(mode).convert(takes)
    change = np.subtract(transform.apply(probe), probe.convert("RGB"), dtype=float)
    return transform if np.abs(change).mean() >= TOLERANCE else None


def _probe(mode):
    """An image of colours of all kinds."""
    if mode == "L":
        return Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    axis = np.linspace(0, 255, _GRID).astype(np.uint8)
    colors = np.stack(np.meshgrid(axis, axis, axis), axis=-1)
    return Image.fromarray(colors.reshape(_GRID, -1, 3))


def _unpacked(chunk):
    """The profile in a PNG's chunk iCCP; b"" if there is none."""
    name, _, packed = chunk.partition(b"\0")
    try:
        profile = zlib.decompressobj().decompress(packed[1:], _MOST_PROFILE) if 0 < len(name) < 80 else b""
    except zlib.error:
        return b""
    return profile if profile[36:40] == b"acsp" else b""


def _coded(chunk):
    """The primaries and the curve of a PNG's chunk cICP; None if they are not known."""
    primaries, curve, matrix, full = chunk if len(chunk) == 4 else (0, 0, 0, 0)
    if matrix or not full or primaries not in _CODED_PRIMARIES or curve not in _CODED_CURVES:
        return None
    return _CODED_PRIMARIES[primaries], _CODED_CURVES[curve]


@functools.lru_cache(maxsize=32)
def rgb_profile(primaries: tuple[float, ...], curve: tuple[float, ...]) -> bytes:
    """Returns an ICC profile (version 4) of RGB.

    Args:
        primaries: the chromaticities x, y of white, red, green and blue.
        curve: the parameters g, a, b, c, d of ICC's curve of type 3.
    """
    x, y = np.reshape(primaries, (4, 2)).T
    white, *colors = np.stack([x / y, np.ones(4), (1 - x - y) / y], axis=1)
    colors = np.array(colors).T
    adapted = np.linalg.inv(_CONES) @ np.diag((_CONES @ _D50) / (_CONES @ white)) @ _CONES
    xyz = adapted @ (colors * np.linalg.solve(colors, white))
    tags = {f"{name}XYZ": b"XYZ " + bytes(4) + _fixed(column) for name, column in zip("rgb", xyz.T)}
    parameters = b"para" + bytes(4) + struct.pack(">HH", 3, 0) + _fixed(curve)
    tags |= {f"{name}TRC": parameters for name in "rgb"} | {"wtpt": b"XYZ " + bytes(4) + _fixed(_D50)}
    place, listed, content = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, tag in tags.items():
        listed += struct.pack(">4sII", name.encode(), place + len(content), len(tag))
        content += tag
    head = struct.pack(
        ">IIBB2x4s4s4s12x4s", place + len(content), 0, 4, 0x40, b"mntr", b"RGB ", b"XYZ ", b"acsp"
    )
    return head.ljust(68, b"\0") + _fixed(_D50) + bytes(48) + listed + content


def _fixed(values):
    """Numbers as ICC writes them, 16 bits before and 16 after the point."""
    return np.round(np.asarray(values) * 65536).astype(">i4").tobytes()
