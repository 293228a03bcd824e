"""Image files of every kind that people have, made from one photo; each by its format's specification."""

import io
import struct
import zlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

from benchmarks import icc_profiles as icc

PHOTO = Image.fromarray(load_sample_image("flower.jpg")).crop((100, 20, 580, 340)).resize((96, 64))
RGB, GRAY = np.asarray(PHOTO), np.asarray(PHOTO.convert("L"))
OTHER = PHOTO.rotate(180)
WIDTH, HEIGHT = PHOTO.size
WITH_ALPHA = np.dstack([RGB, GRAY])
PALETTE = PHOTO.quantize(16)
INDEXES, COLORS = np.asarray(PALETTE), bytes(PALETTE.getpalette()[:48])
INKS = Image.fromarray(np.dstack([255 - RGB, np.full_like(GRAY, 20)]), "CMYK")
PROFILES = {
    "sRGB": icc.rgb("sRGB"),
    "Display P3": icc.rgb("Display P3"),
    "Display P3, version 4": icc.rgb("Display P3", version=4),
    "Adobe RGB": icc.rgb("Adobe RGB", icc.gamma(2.199)),
    "ProPhoto": icc.rgb("ProPhoto", icc.gamma(1.8)),
    "linear": icc.rgb("sRGB", icc.gamma(1)),
    "Rec. 2020 by a table": icc.rgb("Rec. 2020", icc.table(np.linspace(0, 1, 1024) ** 2.4)),
    "red and green exchanged": icc.swapped(),
    "gray of gamma 2.2": icc.gray(icc.gamma(2.2)),
    "gray of gamma 1.4": icc.gray(icc.gamma(1.4)),
    "inks": icc.cmyk(grid=9),
    "damaged": b"the profile",
    "cut off": icc.rgb("ProPhoto", icc.gamma(1.8))[:300],
}
XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    b"</rdf:RDF></x:xmpmeta>"
)


def all_files() -> dict[str, bytes]:
    """Returns some 310 files by a name that begins with the format."""
    return jpegs() | pngs() | webps_and_avifs() | gifs() | bmps() | tiffs() | ppms()


def saved(image: Image.Image, format: str, **options) -> bytes:
    """The file that Pillow writes."""
    file = io.BytesIO()
    image.copy().save(file, format, **options)
    return file.getvalue()


def exif(order="<", orientation=6, *, kind=3, count=1, at=8, before=b"") -> bytes:
    """EXIF data of one tag; `before` is another."""
    layout = {1: "B3x", 3: "H2x", 4: "I", 8: "h2x", 9: "i"}[kind]
    tag = struct.pack(f"{order}HHI{layout}", 0x112, kind, count, orientation)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", at) + bytes(at - 8)
    return start + struct.pack(order + "H", 1 + len(before) // 12) + before + tag + bytes(4)


def segment(marker: int, content: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def jpegs() -> dict[str, bytes]:
    """JPEGs: colours, profiles, orientations."""
    options = {"quality": 95, "subsampling": 0}
    plain, gray, inks = (saved(image, "JPEG", **options) for image in (PHOTO, PHOTO.convert("L"), INKS))
    adobe = inks.index(b"Adobe")
    files = {
        "JPEG": plain,
        "JPEG gray": gray,
        "JPEG 4:2:0": saved(PHOTO, "JPEG", quality=90),
        "JPEG 4:2:2": saved(PHOTO, "JPEG", quality=90, subsampling=1),
        "JPEG progressive": saved(PHOTO, "JPEG", quality=90, progressive=True),
        "JPEG of RGB": saved(PHOTO, "JPEG", quality=95, keep_rgb=True),
        "JPEG of two pictures": saved(PHOTO, "MPO", save_all=True, append_images=[OTHER]),
        "JPEG of inks": inks,
        "JPEG of inks as YCCK": inks[: adobe + 11] + b"\2" + inks[adobe + 12 :],
        "JPEG with bytes behind it": plain + bytes(1000),
    }
    for name, profile in PROFILES.items():
        files[f"JPEG, {name}"] = saved(PHOTO, "JPEG", icc_profile=profile, **options)
        files[f"JPEG gray, {name}"] = saved(PHOTO.convert("L"), "JPEG", quality=95, icc_profile=profile)
        files[f"JPEG of inks, {name}"] = saved(INKS, "JPEG", icc_profile=profile, **options)

    def with_segments(*segments, at=2):
        return plain[:at] + b"".join(segments) + plain[at:]

    def with_exif(*args, **kwargs):
        return segment(0xE1, b"Exif\0\0" + exif(*args, **kwargs))

    for orientation in range(10):
        files[f"JPEG, orientation {orientation}"] = with_segments(with_exif("<", orientation))
    for order, kind in [("<", 1), ("<", 4), (">", 4), ("<", 8), (">", 9), (">", 3)]:
        files[f"JPEG, orientation {order} of kind {kind}"] = with_segments(with_exif(order, kind=kind))
    for count in (0, 2, 7):
        files[f"JPEG, {count} orientations"] = with_segments(with_exif(count=count))
    behind = 4 + struct.unpack(">H", plain[4:6])[0]
    one, none = struct.pack("<HHIHH", 0x112, 3, 1, 3, 0), struct.pack("<HHIHH", 0x112, 3, 1, 9, 0)
    for name, segments, at in [
        ("behind 60 kB", [segment(0xE2, bytes(60_000)), with_exif()], behind),
        ("behind 300 kB", [*[segment(0xE2, bytes(60_000))] * 5, with_exif()], behind),
        ("behind 100 comments", [*[segment(0xFE, b"hello")] * 100, with_exif()], behind),
        ("before the pixels", [with_exif()], plain.index(b"\xff\xda")),
        ("behind filling", [b"\xff\xff", with_exif()], 2),
        ("in the first of two", [with_exif(), with_exif("<", 3)], 2),
        ("in the second of two", [segment(0xE1, b"Exif\0\0junk"), with_exif()], 2),
        ("by another prefix", [segment(0xE1, b"Exif\0\xff" + exif())], 2),
        ("far from the header", [with_exif(at=1001)], 2),
        ("twice", [with_exif(before=one)], 2),
        ("behind one that does not exist", [with_exif(before=none)], 2),
        ("in XMP", [segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP)], 2),
        ("cut off", [segment(0xE1, b"Exif\0\0" + exif()[:18])], 2),
    ]:
        files[f"JPEG, orientation {name}"] = with_segments(*segments, at=at)
    return files


def chunk(name: bytes, content: bytes, *, wrong: bool = False) -> bytes:
    """A chunk of a PNG, maybe with a wrong checksum."""
    checksum = zlib.crc32(name + content) ^ wrong
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def rows(pixels: np.ndarray) -> bytes:
    """Pixels as a PNG compresses them."""
    kind = ">u2" if pixels.dtype.itemsize > 1 else "u1"
    return zlib.compress(b"".join(b"\0" + row.astype(kind).tobytes() for row in pixels))


def png(pixels: np.ndarray, *before: bytes, late: bytes = b"", color: int | None = None) -> bytes:
    """A PNG of `[height, width]` or `[height, width, channels]` of 8 or 16 bits."""
    pixels = np.atleast_3d(pixels)
    depth = 8 * min(2, pixels.dtype.itemsize)
    color = {1: 0, 2: 4, 3: 2, 4: 6}[pixels.shape[2]] if color is None else color
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], depth, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *before, chunk(b"IDAT", rows(pixels)), late, chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pngs() -> dict[str, bytes]:
    """PNGs: depths, colours, orientations, damage, animations."""
    deep = {name: pixels.astype(np.uint16) * 257 for name, pixels in [("RGB", RGB), ("gray", GRAY)]}
    palette = chunk(b"PLTE", COLORS)
    clear = chunk(b"tRNS", bytes(range(0, 256, 16)))
    files = {
        "PNG": png(RGB),
        "PNG gray": png(GRAY),
        "PNG of a palette": png(INDEXES, palette, color=3),
        "PNG of a palette of 4 bits": saved(PALETTE, "PNG", bits=4),
        "PNG black and white": saved(PHOTO.convert("1"), "PNG"),
        "PNG RGB with alpha": png(WITH_ALPHA),
        "PNG gray with alpha": png(np.dstack([GRAY, GRAY[::-1]])),
        "PNG of a clear palette": png(INDEXES, palette, clear, color=3),
        "PNG of a clear palette that comes first": png(INDEXES, clear, palette, color=3),
        "PNG with a clear colour": png(RGB, chunk(b"tRNS", struct.pack(">3H", *RGB[10, 10]))),
        "PNG gray with a clear value": png(GRAY, chunk(b"tRNS", struct.pack(">H", GRAY[10, 10]))),
        "PNG with a background": png(WITH_ALPHA, chunk(b"bKGD", bytes([0, 255, 0, 0, 0, 0]))),
        "PNG of 16 bits": png(deep["RGB"]),
        "PNG of 16 bits gray": png(deep["gray"]),
        "PNG of 16 bits with alpha": png(WITH_ALPHA.astype(np.uint16) * 257),
        "PNG of 16 bits gray with alpha": png(np.dstack([deep["gray"], deep["gray"][::-1]])),
    }
    for name, profile in PROFILES.items():
        one = chunk(b"iCCP", b"x\0\0" + zlib.compress(profile))
        files[f"PNG, {name}"], files[f"PNG gray, {name}"] = png(RGB, one), png(GRAY, one)
        files[f"PNG of 16 bits, {name}"] = png(deep["RGB"], one)
        files[f"PNG of a palette, {name}"] = png(INDEXES, one, palette, color=3)
        files[f"PNG with alpha, {name}"] = png(WITH_ALPHA, one)
    return files | png_colors() | png_damages() | png_animations()


def png_colors() -> dict[str, bytes]:
    """PNGs whose colours or orientation are stated by chunks."""

    def gamma(value):
        return chunk(b"gAMA", struct.pack(">I", round(1e5 * value)))

    def primaries(name):
        red, green, blue, white = icc.PRIMARIES[name]
        values = [round(1e5 * value) for value in (*white, *red, *green, *blue)]
        return chunk(b"cHRM", struct.pack(">8I", *values))

    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(PROFILES["ProPhoto"]))
    junk = chunk(b"iCCP", b"x\0\0" + zlib.compress(b"junk"))
    srgb = chunk(b"sRGB", b"\0")
    files = {
        "PNG, sRGB before others": png(RGB, srgb, gamma(1), primaries("ProPhoto")),
        "PNG, a profile before sRGB": png(RGB, srgb, profile),
        "PNG, gamma behind a damaged profile": png(RGB, junk, gamma(1)),
        "PNG, gamma behind the pixels": png(RGB, late=gamma(1)),
        "PNG, code before a profile": png(RGB, chunk(b"cICP", bytes([1, 13, 0, 1])), profile),
        "PNG, orientation": png(RGB, chunk(b"eXIf", exif())),
        "PNG, orientation of 32 bits": png(RGB, chunk(b"eXIf", exif(kind=4))),
        "PNG, orientation behind the pixels": png(RGB, late=chunk(b"eXIf", exif())),
        "PNG, two orientations": png(RGB, chunk(b"eXIf", exif()), chunk(b"eXIf", exif("<", 3))),
        "PNG, orientation in XMP": png(RGB, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)),
    }
    for value in (1.0, 1 / 2.2, 1 / 1.8, 1 / 3):
        files[f"PNG, gamma {value:.2f}"] = png(RGB, gamma(value))
        files[f"PNG gray, gamma {value:.2f}"] = png(GRAY, gamma(value))
    for name in icc.PRIMARIES:
        files[f"PNG, primaries of {name}"] = png(RGB, primaries(name))
        files[f"PNG, gamma and primaries of {name}"] = png(RGB, gamma(1 / 2.2), primaries(name))
    for code in [(9, 13), (12, 13), (11, 13), (1, 1), (1, 8), (6, 6), (5, 5), (2, 2)]:
        files[f"PNG, code {code}"] = png(RGB, chunk(b"cICP", bytes([*code, 0, 1])))
    return files


def png_damages() -> dict[str, bytes]:
    """PNGs with damage that browsers ignore."""
    palette, plain = chunk(b"PLTE", COLORS), png(RGB)
    contents = {
        b"tEXt": b"a\0b",
        b"gAMA": struct.pack(">I", 100_000),
        b"tIME": bytes(7),
        b"xyZw": b"junk",
        b"iCCP": b"x\0\0" + zlib.compress(PROFILES["ProPhoto"]),
        b"eXIf": exif(),
    }
    files = {
        "PNG, a wrong checksum of tRNS": png(
            INDEXES, palette, chunk(b"tRNS", bytes(16), wrong=True), color=3
        ),
        "PNG, a wrong checksum of the end": plain[:-1] + bytes([plain[-1] ^ 1]),
        "PNG, a second palette": png(RGB, late=palette),
        "PNG, bytes behind it": plain + bytes(100),
    }
    for name, content in contents.items():
        wrong = chunk(name, content, wrong=True)
        files[f"PNG, a wrong checksum of {name.decode()}"] = png(RGB, wrong)
        files[f"PNG, a wrong checksum of a late {name.decode()}"] = png(RGB, late=wrong)
    return files


def png_animations() -> dict[str, bytes]:
    """Animated PNGs."""
    part = RGB[:30, :40]
    control = chunk(b"fcTL", struct.pack(">5I2H2B", 0, 40, 30, 20, 10, 1, 1, 0, 0))
    late = control + chunk(b"fdAT", struct.pack(">I", 1) + rows(part))
    return {
        "PNG animated": saved(PHOTO, "PNG", save_all=True, append_images=[OTHER]),
        "PNG animated beside a still": saved(
            OTHER, "PNG", save_all=True, append_images=[PHOTO, OTHER], default_image=True
        ),
        "PNG animated, a small first picture": png(
            RGB[::-1], chunk(b"acTL", struct.pack(">II", 1, 0)), late=late
        ),
    }


def webps_and_avifs() -> dict[str, bytes]:
    """WebP and AVIF: profiles, orientations, alpha, animations."""
    alpha = Image.fromarray(WITH_ALPHA)
    small = saved(PHOTO.crop((0, 0, 40, 30)), "WEBP", lossless=True)[12:]
    files = {
        "WebP lossy": saved(PHOTO, "WEBP", quality=95),
        "WebP with alpha": saved(alpha, "WEBP", lossless=True),
        "WebP lossy with alpha": saved(alpha, "WEBP", quality=95),
        "WebP, orientation in XMP": saved(PHOTO, "WEBP", lossless=True, xmp=XMP),
        "WebP animated": saved(PHOTO, "WEBP", save_all=True, append_images=[OTHER], lossless=True),
        "WebP animated, a small first picture": animated_webp(small, 20, 10, 40, 30),
        "AVIF": saved(PHOTO, "AVIF", quality=95),
        "AVIF gray": saved(PHOTO.convert("L"), "AVIF", quality=95),
        "AVIF 4:2:0": saved(PHOTO, "AVIF", quality=90),
        "AVIF, orientation in XMP": saved(PHOTO, "AVIF", quality=95, xmp=XMP),
    }
    for orientation in range(1, 9):
        data = b"Exif\0\0" + exif("<", orientation)
        files[f"WebP, orientation {orientation}"] = saved(PHOTO, "WEBP", lossless=True, exif=data)
        files[f"AVIF, orientation {orientation}"] = saved(PHOTO, "AVIF", quality=95, exif=data)
    for name in ("Display P3", "ProPhoto", "linear", "damaged"):
        files[f"WebP, {name}"] = saved(PHOTO, "WEBP", lossless=True, icc_profile=PROFILES[name])
        if name != "damaged":
            files[f"AVIF, {name}"] = saved(PHOTO, "AVIF", quality=95, icc_profile=PROFILES[name])
    return files


def animated_webp(still: bytes, x: int, y: int, width: int, height: int) -> bytes:
    """A WebP whose first picture covers a part, with a background that browsers do not show."""

    def three(value):
        return struct.pack("<I", value)[:3]

    frame = b"".join(map(three, (x // 2, y // 2, width - 1, height - 1, 100))) + b"\0" + still
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\2\0\0\0" + three(WIDTH - 1) + three(HEIGHT - 1)
    body += b"ANIM" + struct.pack("<I", 6) + b"\x10\x20\xf0\xff\0\0"
    body += b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gifs() -> dict[str, bytes]:
    """GIFs: small first pictures, transparency, palettes of one picture."""
    indexes, clear = INDEXES, int(INDEXES[3, 3])
    part = indexes[:40, :50]
    return {
        "GIF": gif((WIDTH, HEIGHT), 0, 0, indexes),
        "GIF with a clear colour": gif((WIDTH, HEIGHT), 0, 0, indexes, clear=clear),
        "GIF, a small first picture": gif((WIDTH, HEIGHT), 10, 5, part, background=3),
        "GIF, a small clear first picture": gif((WIDTH, HEIGHT), 10, 5, part, clear=clear, background=3),
        "GIF, a picture beyond its size": gif((WIDTH, HEIGHT), 60, 30, indexes),
        "GIF, a picture larger than its size": gif((50, 40), 0, 0, indexes),
        "GIF animated": saved(PALETTE, "GIF", save_all=True, append_images=[OTHER.quantize(16)]),
        "GIF interlaced": saved(PALETTE, "GIF", interlace=1),
    }


def gif(size, x, y, indexes, *, clear=None, background=0) -> bytes:
    """A GIF of one picture of the 16 colours, compressed by codes that are never shortened."""
    height, width = indexes.shape
    control = struct.pack("<BHB", clear is not None, 0, clear or 0)
    codes = []
    for start in range(0, indexes.size, 14):
        codes += [16, *indexes.ravel()[start : start + 14].tolist()]
    bits = "".join(f"{code:05b}"[::-1] for code in [*codes, 17])
    packed = np.packbits([int(bit) for bit in bits], bitorder="little").tobytes()
    blocks = b"".join(bytes([len(part)]) + part for part in _blocks(packed, 255))
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", *size, 0xB3, background, 0)
        + COLORS
        + (b"!\xf9\4" + control + b"\0," + struct.pack("<HHHHB", x, y, width, height, 0) + b"\4")
        + (blocks + b"\0;")
    )


def _blocks(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


def bmp(values, bits, compression=0, masks=(), *, size=40, colors=b"", down=False, data=b"") -> bytes:
    """A bitmap: `[height, width]` values, or compressed data."""
    if not data:
        lines = [row.tobytes() for row in (values if down else values[::-1])]
        data = b"".join(line + bytes(-len(line) % 4) for line in lines)
    height = -HEIGHT if down else HEIGHT
    head = struct.pack("<IiiHHIIiiII", size, WIDTH, height, 1, bits, compression, len(data), 1, 1, 0, 0)
    head = (head + struct.pack(f"<{len(masks)}I", *masks)).ljust(size, b"\0")
    place = 14 + len(head) + len(colors)
    return b"BM" + struct.pack("<IHHI", place + len(data), 0, 0, place) + head + colors + data


def bmps() -> dict[str, bytes]:
    """Bitmaps: bit fields, alpha, palettes, run lengths."""
    red, green, blue = (RGB[:, :, number].astype(np.uint32) for number in range(3))
    alpha = GRAY.astype(np.uint32)
    five = ((red >> 3) << 11 | (green >> 2) << 5 | blue >> 3).astype("<u2")
    same = ((red >> 3) << 10 | (green >> 3) << 5 | blue >> 3).astype("<u2")
    four = ((alpha >> 4) << 12 | (red >> 4) << 8 | (green >> 4) << 4 | blue >> 4).astype("<u2")
    all_four = (alpha << 24 | red << 16 | green << 8 | blue).astype("<u4")
    ten = ((red * 1023 // 255) << 20 | (green * 1023 // 255) << 10 | blue * 1023 // 255).astype("<u4")
    masks, clear = (0xFF0000, 0xFF00, 0xFF), (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    colors = b"".join(COLORS[3 * n : 3 * n + 3][::-1] + b"\0" for n in range(16)).ljust(1024, b"\0")
    lines = [bytes([0, WIDTH]) + row.tobytes() + b"\0\0" for row in INDEXES[::-1].astype(np.uint8)]
    halves = [
        b"".join(bytes([2, a << 4 | b]) for a, b in row.reshape(-1, 2).tolist()) + b"\0\0"
        for row in INDEXES[::-1]
    ]
    return {
        "BMP": bmp(RGB[:, :, ::-1].reshape(HEIGHT, -1), 24),
        "BMP from top to bottom": bmp(RGB[:, :, ::-1].reshape(HEIGHT, -1), 24, down=True),
        "BMP 5-5-5": bmp(same, 16),
        "BMP 5-6-5": bmp(five, 16, 3, (0xF800, 0x7E0, 0x1F)),
        "BMP 5-6-5 from top to bottom": bmp(five, 16, 3, (0xF800, 0x7E0, 0x1F), down=True),
        "BMP 5-6-5, version 4": bmp(five, 16, 3, (0xF800, 0x7E0, 0x1F, 0), size=108),
        "BMP 4-4-4-4": bmp(four, 16, 3, (0xF00, 0xF0, 0xF, 0xF000), size=108),
        "BMP 4-4-4": bmp(four, 16, 3, (0xF00, 0xF0, 0xF)),
        "BMP of 32 bits": bmp(all_four, 32),
        "BMP of 32 bits by fields": bmp(all_four, 32, 3, masks),
        "BMP of 32 bits with alpha": bmp(all_four, 32, 3, clear, size=108),
        "BMP of 32 bits by fields with alpha": bmp(all_four, 32, 6, clear),
        "BMP 10-10-10": bmp(ten, 32, 3, (0x3FF00000, 0xFFC00, 0x3FF)),
        "BMP of a palette": bmp(INDEXES.astype(np.uint8), 8, colors=colors),
        "BMP of run lengths": bmp(None, 8, 1, colors=colors, data=b"".join(lines) + b"\0\1"),
        "BMP of short run lengths": bmp(None, 8, 1, colors=colors, data=b"".join(lines[:40]) + b"\0\1"),
        "BMP of run lengths of 4 bits": bmp(None, 4, 2, colors=colors[:64], data=b"".join(halves) + b"\0\1"),
    }


def tiff(values, order="<", photometric=2, *, planar=False, extra=()) -> bytes:
    """An uncompressed TIFF of `[height, width, channels]` of 8 or 16 bits."""
    height, width, channels = values.shape
    kind = order + ("u2" if values.dtype.itemsize > 1 else "u1")
    planes = values.transpose(2, 0, 1) if planar else [values]
    strips = [np.ascontiguousarray(plane).astype(kind).tobytes() for plane in planes]
    starts = np.cumsum([8, *map(len, strips)])
    tags = [(256, 3, [width]), (257, 3, [height]), (258, 3, [8 * min(2, values.dtype.itemsize)] * channels)]
    tags += [(259, 3, [1]), (262, 3, [photometric]), (273, 4, starts[:-1]), (277, 3, [channels])]
    tags += [(278, 3, [height]), (279, 4, [len(strip) for strip in strips]), (284, 3, [1 + planar]), *extra]
    entries, lists, at = b"", b"", starts[-1]
    for tag, kind, items in sorted(tags, key=lambda tag: tag[0]):
        packed = struct.pack(f"{order}{len(items)}{ {3: 'H', 4: 'I', 7: 'B'}[kind] }", *items)
        if len(packed) > 4:
            lists, packed = lists + packed + bytes(len(packed) % 2), struct.pack(order + "I", at + len(lists))
        entries += struct.pack(order + "HHI", tag, kind, len(items)) + packed.ljust(4, b"\0")
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", at + len(lists))
    return start + b"".join(strips) + lists + struct.pack(order + "H", len(tags)) + entries + bytes(4)


def tiffs() -> dict[str, bytes]:
    """TIFFs: depths, inks, alpha, orientations, compressions."""
    deep, gray = RGB.astype(np.uint16) * 257, GRAY[:, :, None]
    deep_gray = gray.astype(np.uint16) * 257
    profile = [(34675, 7, list(PROFILES["ProPhoto"]))]
    files = {
        "TIFF": tiff(RGB),
        "TIFF planar": tiff(RGB, planar=True),
        "TIFF with alpha": tiff(WITH_ALPHA, extra=[(338, 3, [2])]),
        "TIFF gray, white is 0": tiff(255 - gray, photometric=0),
        "TIFF gray of 16 bits, white is 0": tiff(65535 - deep_gray, photometric=0),
        "TIFF of inks": tiff(np.asarray(INKS), photometric=5),
        "TIFF of 16-bit inks": tiff(np.asarray(INKS).astype(np.uint16) * 257, photometric=5),
        "TIFF of 16 bits, ProPhoto": tiff(deep, extra=profile),
        "TIFF of a palette": saved(PALETTE, "TIFF"),
        "TIFF black and white": saved(PHOTO.convert("1"), "TIFF", compression="group4"),
        "TIFF of two pages": saved(PHOTO, "TIFF", save_all=True, append_images=[OTHER.copy()]),
        "TIFF gray, gamma 1.4": saved(PHOTO.convert("L"), "TIFF", icc_profile=PROFILES["gray of gamma 1.4"]),
    }
    for order in "<>":
        files[f"TIFF of 16 bits {order}"] = tiff(deep, order)
        files[f"TIFF gray of 16 bits {order}"] = tiff(deep_gray, order, 1)
        files[f"TIFF of 16 bits with alpha {order}"] = tiff(
            np.dstack([deep, deep_gray]), order, extra=[(338, 3, [2])]
        )
    for orientation in range(1, 9):
        files[f"TIFF, orientation {orientation}"] = saved(PHOTO, "TIFF", tiffinfo={274: orientation})
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        files[f"TIFF by {compression}"] = saved(PHOTO, "TIFF", compression=compression)
    for name in ("Display P3", "ProPhoto", "linear"):
        files[f"TIFF, {name}"] = saved(PHOTO, "TIFF", icc_profile=PROFILES[name])
    return files


def ppms() -> dict[str, bytes]:
    """PPM, PGM and PBM."""
    size = b"%d %d\n" % PHOTO.size
    return {
        "PPM": saved(PHOTO, "PPM"),
        "PPM gray": saved(PHOTO.convert("L"), "PPM"),
        "PPM black and white": saved(PHOTO.convert("1"), "PPM"),
        "PPM of 16 bits": b"P6\n" + size + b"65535\n" + (RGB.astype(">u2") * 257).astype(">u2").tobytes(),
        "PPM gray of 16 bits": b"P5\n"
        + size
        + b"65535\n"
        + (GRAY.astype(">u2") * 257).astype(">u2").tobytes(),
    }
