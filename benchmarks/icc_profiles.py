"""ICC colour profiles of a few hundred bytes, made by the ICC specification (version 2.4 and 4.3).

Those of Debian and of vendors may not be copied, and test files need profiles of every kind.
"""

import struct

import numpy as np

D50 = (0.9642, 1.0, 0.8249)
D65, D50_XY = (0.3127, 0.3290), (0.3457, 0.3585)
# Chromaticities of red, green, blue and white.
PRIMARIES = {
    "sRGB": ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06), D65),
    "Display P3": ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), D65),
    "Adobe RGB": ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06), D65),
    "ProPhoto": ((0.7347, 0.2653), (0.1596, 0.8404), (0.0366, 0.0001), D50_XY),
    "Rec. 2020": ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), D65),
}
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_SRGB_CURVE = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)


def to_xyz(primaries: tuple) -> np.ndarray:
    """`[3, 3]`, from linear RGB of chromaticities to XYZ of D50, adapted by Bradford's method."""
    x, y = np.array(primaries).T
    columns = np.stack([x / y, np.ones(4), (1 - x - y) / y])
    colors, white = columns[:, :3], columns[:, 3]
    cones = (_BRADFORD @ D50) / (_BRADFORD @ white)
    adapted = np.linalg.inv(_BRADFORD) @ np.diag(cones) @ _BRADFORD
    return adapted @ (colors * np.linalg.solve(colors, white))


def gamma(power: float) -> bytes:
    """A curve x^power."""
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(power * 256)) + bytes(2)


def table(values: np.ndarray) -> bytes:
    """A curve by equidistant values in [0, 1]."""
    items = np.round(np.asarray(values) * 65535).astype(">u2").tobytes()
    return b"curv" + bytes(4) + struct.pack(">I", len(values)) + items + bytes(-len(items) % 4)


def srgb_curve() -> bytes:
    """sRGB's curve, as parameters."""
    return b"para" + bytes(4) + struct.pack(">HH", 3, 0) + b"".join(map(_fixed, _SRGB_CURVE))


def rgb(
    primaries: str = "Display P3", curve: bytes | None = None, *, version: int = 2, **tags: bytes
) -> bytes:
    """A profile of three colorants and a curve; `tags` replace or add tags."""
    xyz = to_xyz(PRIMARIES[primaries])
    own = {f"{name}XYZ": _xyz(xyz[:, number]) for number, name in enumerate("rgb")}
    own |= {f"{name}TRC": curve or srgb_curve() for name in "rgb"}
    return profile(b"RGB ", b"XYZ ", own | tags, version=version)


def gray(curve: bytes) -> bytes:
    """A profile of gray alone."""
    return profile(b"GRAY", b"XYZ ", {"kTRC": curve})


def cmyk(grid: int = 5) -> bytes:
    """A profile of four inks by a table to Lab, of inks such as those of offset printing on white paper."""
    return profile(b"CMYK", b"Lab ", {"A2B0": lut(4, grid, inks_to_xyz)}, kind=b"prtr")


def swapped(grid: int = 9) -> bytes:
    """A profile of RGB by a table that exchanges red and green; its colorants do not."""

    def colors(values):
        linear = values[:, [1, 0, 2]] ** 2.2
        return linear @ to_xyz(PRIMARIES["sRGB"]).T

    return rgb("sRGB", A2B0=lut(3, grid, colors), pcs=b"Lab ")


def inks_to_xyz(inks: np.ndarray) -> np.ndarray:
    """XYZ of `[n, 4]` shares of ink, each of which lets a share of light pass."""
    passed = np.array([[0.05, 0.35, 0.75], [0.65, 0.05, 0.25], [0.95, 0.85, 0.03], [0.03, 0.03, 0.03]])
    light = np.prod(1 - inks[:, :, None] * (1 - passed), axis=1)
    return light @ to_xyz(PRIMARIES["sRGB"]).T


def lut(channels: int, grid: int, colors) -> bytes:
    """A table of `grid` steps a channel to Lab of 8 bits; `colors` maps `[n, channels]` shares to XYZ."""
    axes = np.meshgrid(*[np.linspace(0, 1, grid)] * channels, indexing="ij")
    lab = to_lab(colors(np.stack([axis.ravel() for axis in axes], axis=1)))
    packed = np.round(lab * [2.55, 1, 1] + [0, 128, 128]).clip(0, 255).astype(np.uint8).tobytes()
    line = bytes(range(256))
    head = b"mft1" + bytes(4) + bytes([channels, 3, grid, 0])
    head += b"".join(_fixed(value) for value in np.eye(3).ravel())
    data = head + line * channels + packed + line * 3
    return data + bytes(-len(data) % 4)


def to_lab(xyz: np.ndarray) -> np.ndarray:
    """CIE Lab of XYZ, both of D50."""
    share = np.asarray(xyz) / D50
    root = np.where(share > (6 / 29) ** 3, np.cbrt(share), share * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = root.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def profile(
    space: bytes,
    pcs: bytes,
    tags: dict[str, bytes],
    *,
    kind: bytes = b"mntr",
    version: int = 2,
    intent: int = 0,
) -> bytes:
    """A profile with tags."""
    if "pcs" in tags:
        pcs = tags.pop("pcs")
    text = b"made for tests\0"
    desc = b"desc" + bytes(4) + struct.pack(">I", len(text)) + text + bytes(78)
    known = {"desc": desc, "cprt": b"text" + bytes(4) + b"CC0\0", "wtpt": _xyz(D50)} | tags
    at = 132 + 12 * len(known)
    at += -at % 4
    listed, data = b"", b""
    for name, content in known.items():
        listed += struct.pack(">4sII", name.encode(), at + len(data), len(content))
        data += content + bytes(-len(content) % 4)
    body = struct.pack(">I", len(known)) + listed
    body += bytes(-(128 + len(body)) % 4) + data
    white = b"".join(map(_fixed, D50))
    head = struct.pack(">II4s4s4s", 128 + len(body), 0, bytes([version, 0x40, 0, 0]), kind, space) + pcs
    head += struct.pack(">6H", 2026, 1, 1, 0, 0, 0)[:12] + b"acsp" + bytes(4) + bytes(4) + bytes(8) + bytes(8)
    head += struct.pack(">I", intent) + white + bytes(4)
    return head.ljust(128, b"\0") + body


def _fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def _xyz(values) -> bytes:
    return b"XYZ " + bytes(4) + b"".join(map(_fixed, values))
