"""Every row of the table of `image_files`, as TensorFlow decodes the result; and damage of all kinds."""

import contextlib
import io
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import ExifTags, Image, ImageFile, PngImagePlugin
from sklearn.datasets import load_sample_image

from tests.command_lines import ROOT
from tfrank.data.prepare import image_files, sixteen_bits
from tfrank.data.prepare.image_files import BadImage, checked_image

# Four flat quarters, so that JPEGs differ from them by little, and no turn or mirror leaves them alone.
QUARTERS = np.array([[[200, 40, 90], [30, 160, 60]], [[20, 50, 210], [240, 220, 40]]], np.uint8)
PIXELS = QUARTERS.repeat(16, axis=0).repeat(32, axis=1)
PICTURE = Image.fromarray(PIXELS)
OTHER = Image.fromarray(255 - PIXELS)
GRAY = np.asarray(PICTURE.convert("L"))
# Half of it is clear, half a little.
ALPHA = np.repeat([[0] * 32 + [100] * 32], 32, axis=0).astype(np.uint8)
OVER_WHITE = np.round((PIXELS * (ALPHA / 255)[:, :, None]) + (255 - ALPHA)[:, :, None]).astype(int)


def file(image, format, **options):
    buffer = io.BytesIO()
    image.copy().save(buffer, format, **options)
    return buffer.getvalue()


def decoded(encoded):
    """As the pipeline decodes."""
    return tf.io.decode_image(encoded, channels=3, expand_animations=False).numpy()


def with_alpha(image):
    image = image.copy()
    image.putalpha(Image.fromarray(ALPHA))
    return image


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, depth, color, rows, *chunks, interlace=0, late=b""):
    """A PNG by its specification: rows of a filter byte and values, chunks before and after them."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + pixels + late + chunk(b"IEND", b"")
    )


def png16(color, values, *chunks):
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(values.shape[1], values.shape[0], 16, color, rows, *chunks)


def exif(orientation):
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags.tobytes()


def gray(pixels):
    return np.repeat(np.asarray(pixels)[:, :, None], 3, axis=2)


KEPT = {
    "JPEG": file(PICTURE, "JPEG", quality=90),
    "progressive JPEG": file(PICTURE, "JPEG", progressive=True),
    "grayscale JPEG": file(PICTURE.convert("L"), "JPEG"),
    "JPEG with orientation 1": file(PICTURE, "JPEG", exif=exif(1)),
    "JPEG with an orientation that does not exist": file(PICTURE, "JPEG", exif=exif(9)),
    "JPEG with damaged EXIF": file(PICTURE, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"),
    "JPEG with bytes after its end": file(PICTURE, "JPEG") + bytes(100),
    "JPEG with a second picture": file(PICTURE, "MPO", save_all=True, append_images=[OTHER]),
    "RGB PNG": file(PICTURE, "PNG"),
    "grayscale PNG": file(PICTURE.convert("L"), "PNG"),
    "palette PNG": file(PICTURE.quantize(4), "PNG"),
    "black and white PNG": file(PICTURE.convert("1"), "PNG"),
    "grayscale PNG of 2 bits": png(4, 1, 2, 0, b"\0\x1b"),
    "interlaced PNG": png(3, 2, 8, 0, b"\0\1" + b"\0\2" + b"\0\3" + b"\0\4\5\6", interlace=1),
    "PNG with gamma and profile": png(
        2, 1, 8, 0, b"\0\x40\x80", chunk(b"gAMA", struct.pack(">I", 45455)), chunk(b"iCCP", b"x\0\0junk")
    ),
    "lossy WebP": file(PICTURE, "WEBP"),
    "lossless WebP": file(PICTURE, "WEBP", lossless=True),
    "WebP with metadata": file(PICTURE, "WEBP", exif=exif(1)),
    # No browser turns it.
    "WebP with orientation 6": file(PICTURE, "WEBP", lossless=True, exif=exif(6)),
}

VALUES = np.random.default_rng(0).integers(0, 2**16, [5, 7, 4])
EIGHT = np.round(VALUES / 257).astype(int)


def over_white(pixels, alpha):
    return np.round((pixels * (alpha / 255.0)) + 255 - alpha)


def tiff(values, order, bits=16, planar=False):
    """An uncompressed RGB or gray TIFF, by its specification; order is "<" or ">"."""
    height, width, channels = values.shape
    planes = values.transpose(2, 0, 1) if planar else [values]
    strips = [plane.astype(order + "u2").tobytes() for plane in planes]
    starts = np.cumsum([8, *map(len, strips)])
    tags = [(256, 3, [width]), (257, 3, [height]), (258, 3, [bits] * channels), (259, 3, [1])]
    tags += [(262, 3, [2 if channels == 3 else 1]), (273, 4, starts[:-1]), (277, 3, [channels])]
    tags += [(278, 3, [height]), (279, 4, [len(strip) for strip in strips]), (284, 3, [1 + planar])]
    entries, lists, at = b"", b"", starts[-1]
    for tag, kind, items in tags:
        packed = struct.pack(f"{order}{len(items)}{'HI'[kind - 3]}", *items)
        if len(packed) > 4:
            lists, packed = lists + packed, struct.pack(order + "I", at + len(lists))
        entries += struct.pack(order + "HHI", tag, kind, len(items)) + packed.ljust(4, b"\0")
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(order + "I", at + len(lists))
    return start + b"".join(strips) + lists + struct.pack(order + "H", len(tags)) + entries + bytes(4)


def inks(transform, adobe=True):
    """A CMYK or YCCK JPEG (Adobe's transform 0 or 2) of PICTURE with a little black, and its colours.

    By Adobe's convention a value v is the share 1 - v / 255 of ink. Decoders turn YCC to RGB and that
    upside down.
    """
    black = 30
    inverted = Image.fromarray(255 - PIXELS).convert("YCbCr")
    stored = np.asarray(PICTURE if transform == 0 else inverted)
    four = np.dstack([stored, np.full(stored.shape[:2], 255 - black, np.uint8)])
    data = file(Image.fromarray(255 - four, "CMYK"), "JPEG", quality=100, subsampling=0)
    at = data.index(b"Adobe")
    data = data[: at + 11] + bytes([transform]) + data[at + 12 :]
    if not adobe:
        data = data[: at - 4] + data[at - 2 + int.from_bytes(data[at - 2 : at], "big") :]
    return data, PIXELS * ((255 - black) / 255)


WRITTEN = {
    "CMYK JPEG": (*inks(0), "jpeg"),
    "YCCK JPEG": (*inks(2), "jpeg"),
    "CMYK JPEG without Adobe's mark": (*inks(0, adobe=False), "jpeg"),
    "PNG of 16-bit gray": (png16(0, VALUES[:, :, 0]), gray(EIGHT[:, :, 0]), "png"),
    "PNG of 16-bit RGB": (png16(2, VALUES[:, :, :3]), EIGHT[:, :, :3], "png"),
    "PNG of 16-bit gray with alpha": (
        png16(4, VALUES[:, :, :2]),
        gray(over_white(EIGHT[:, :, 0], EIGHT[:, :, 1])),
        "png",
    ),
    "PNG of 16-bit RGB with alpha": (png16(6, VALUES), over_white(EIGHT[:, :, :3], EIGHT[:, :, 3:]), "png"),
    "PNG of 16-bit gray with a transparent value": (
        png16(0, np.array([[1000, 1001]]), chunk(b"tRNS", struct.pack(">H", 1000))),
        [[[255] * 3, [4] * 3]],
        "png",
    ),
    "TIFF of 16-bit gray": (
        file(Image.fromarray(VALUES[:, :, 0].astype(np.uint16)), "TIFF"),
        gray(EIGHT[:, :, 0]),
        "png",
    ),
    "TIFF of 16-bit RGB, little-endian": (tiff(VALUES[:, :, :3], "<"), EIGHT[:, :, :3], "png"),
    "TIFF of 16-bit RGB, big-endian": (tiff(VALUES[:, :, :3], ">"), EIGHT[:, :, :3], "png"),
    "RGBA PNG": (file(with_alpha(PICTURE), "PNG"), OVER_WHITE, "png"),
    "LA PNG": (
        file(with_alpha(PICTURE.convert("L")), "PNG"),
        over_white(gray(GRAY), ALPHA[:, :, None]),
        "png",
    ),
    "RGBA WebP": (file(with_alpha(PICTURE), "WEBP", lossless=True), OVER_WHITE, "png"),
    "palette PNG with a transparent colour": (
        png(4, 1, 2, 3, b"\0\x1b", chunk(b"PLTE", bytes(range(12))), chunk(b"tRNS", b"\xff\0")),
        [[[0, 1, 2], [255, 255, 255], [6, 7, 8], [9, 10, 11]]],
        "png",
    ),
    "RGB PNG with a transparent colour": (
        png(2, 1, 8, 2, b"\0\1\2\3\4\5\6", chunk(b"tRNS", b"\0\1\0\2\0\3")),
        [[[255, 255, 255], [4, 5, 6]]],
        "png",
    ),
    "black and white PNG with a transparent colour": (
        png(4, 1, 1, 0, b"\0\x50", chunk(b"tRNS", b"\0\0")),
        [[[255] * 3] * 4],
        "png",
    ),
    "GIF": (file(PICTURE, "GIF"), PIXELS, "png"),
    "animated GIF": (file(PICTURE, "GIF", save_all=True, append_images=[OTHER]), PIXELS, "png"),
    "animated WebP": (
        file(PICTURE, "WEBP", save_all=True, append_images=[OTHER], lossless=True),
        PIXELS,
        "png",
    ),
    "animated PNG": (file(PICTURE, "PNG", save_all=True, append_images=[OTHER]), PIXELS, "png"),
    "TIFF of two pages": (file(PICTURE, "TIFF", save_all=True, append_images=[OTHER.copy()]), PIXELS, "png"),
    "compressed TIFF": (file(PICTURE, "TIFF", compression="tiff_lzw"), PIXELS, "png"),
    "CMYK TIFF": (
        file(Image.fromarray(255 - np.dstack([PIXELS, GRAY * 0 + 255]), "CMYK"), "TIFF"),
        PIXELS,
        "png",
    ),
    "BMP": (file(PICTURE, "BMP"), PIXELS, "png"),
    "PPM": (file(PICTURE, "PPM"), PIXELS, "png"),
    "PNG with orientation 6": (file(PICTURE, "PNG", exif=exif(6)), np.rot90(PIXELS, -1), "png"),
    "TIFF with orientation 6": (file(PICTURE, "TIFF", tiffinfo={274: 6}), np.rot90(PIXELS, -1), "png"),
}


def bomb(name):
    return chunk(name, b"x\0\0" + zlib.compress(bytes(50_000_000)))


BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"This is not an image.\n" * 9, "no image in a known format"),
    "truncated JPEG": (KEPT["JPEG"][:-200], "truncated or damaged"),
    "JPEG of a header only": (KEPT["JPEG"][:300], "truncated or damaged"),
    "JPEG with a segment beyond its end": (KEPT["JPEG"][:-2] + b"\xff\xe1\xff\xff", "the end of the JPEG"),
    "truncated PNG": (KEPT["RGB PNG"][:-30], "truncated or damaged"),
    "PNG without its end": (KEPT["RGB PNG"][:-12], "truncated or damaged"),
    "PNG with too few rows": (png(2, 2, 8, 0, b"\0\1\2"), "not have the pixels that its header promises"),
    "PNG with too many": (png(2, 1, 8, 0, bytes(9**8)), "not have the pixels that its header promises"),
    "PNG with a wrong checksum": (KEPT["RGB PNG"][:32] + b"x" + KEPT["RGB PNG"][33:], "truncated or damaged"),
    "palette PNG without a palette": (png(2, 1, 8, 3, b"\0\1\2"), "the palette of the PNG"),
    "PNG with a palette of 4 bytes": (png(2, 1, 8, 3, b"\0\0\0", chunk(b"PLTE", b"abcd")), "the palette"),
    "truncated WebP": (KEPT["lossy WebP"][:-20], "truncated or damaged"),
    "truncated GIF": (file(PICTURE, "GIF")[:-20], "truncated or damaged"),
    "float TIFF": (file(PICTURE.convert("F"), "TIFF"), "32-bit integers or floats"),
    "32-bit TIFF": (file(PICTURE.convert("I"), "TIFF"), "32-bit integers or floats"),
    "12-bit TIFF": (tiff(VALUES[:, :4, :1], "<", bits=12), "12 or 32-bit integers"),
    "TIFF of 16 bits in planes": (tiff(VALUES[:, :, :3], "<", planar=True), "in separate planes"),
    "PNG of 60,000 x 60,000": (png(60000, 60000, 8, 2, b"\0"), "more than 89,478,485 pixels"),
    "PNG of 10,000 x 10,000": (png(10000, 10000, 8, 2, b"\0"), "89,478,485 pixels: 10000 x 10000"),
    "BMP of 60,000 x 60,000": (
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, *[60000] * 2, 1, 24, *[0] * 6),
        "pixels",
    ),
    "PNG of a million x 1": (png(10**6, 1, 8, 0, bytes(10**6 + 1)), "more than 65,500 pixels: 1000000 x 1"),
    "PNG without width": (png(0, 1, 8, 0, b"\0"), "the header"),
    "PNG with a profile of 50 MB": (png(2, 1, 8, 0, b"\0\1\2", bomb(b"iCCP")), "too large"),
    "PNG with a text of 50 MB": (png(2, 1, 8, 0, b"\0\1\2", bomb(b"zTXt")), "too large"),
    "PNG with a late text of 50 MB": (png(2, 1, 8, 0, b"\0\1\2", late=bomb(b"zTXt")), "too large"),
}


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_what_tensorflow_shows_rightly_is_kept_byte_for_byte(kind):
    image = checked_image(KEPT[kind])
    assert image.encoded == KEPT[kind]
    pillow = Image.open(io.BytesIO(KEPT[kind]))
    assert image.format == pillow.format.lower().replace("mpo", "jpeg")
    assert (image.width, image.height) == pillow.size
    np.testing.assert_allclose(decoded(image.encoded), np.asarray(pillow.convert("RGB")), atol=6)


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_it_would_show_otherwise_is_written_again(kind):
    data, expected, format = WRITTEN[kind]
    image = checked_image(data)
    assert image.encoded != data
    assert image.format == format and Image.open(io.BytesIO(image.encoded)).format == format.upper()
    assert (image.height, image.width) == np.shape(expected)[:2]
    np.testing.assert_allclose(decoded(image.encoded), expected, atol=1 if format == "png" else 5)


@pytest.mark.parametrize(
    "kind", ["PNG of 16-bit gray", "PNG of 16-bit RGB", "TIFF of 16-bit RGB, big-endian"]
)
def test_16_bits_are_rounded_to_8_exactly(kind):
    data, expected, _ = WRITTEN[kind]
    np.testing.assert_array_equal(decoded(checked_image(data).encoded), expected)


# What a viewer shows: where row 0 and column 0 of the stored picture lie, by the EXIF standard.
TURNS = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: pixels.transpose(1, 0, 2)[:, ::-1],
    7: lambda pixels: pixels.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda pixels: pixels.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_a_picture_is_turned_upright(orientation, format):
    options = {
        "JPEG": {"exif": exif(orientation), "subsampling": 0},
        "TIFF": {"tiffinfo": {274: orientation}},
    }
    image = checked_image(file(PICTURE, format, **options[format]))
    expected = TURNS[orientation](PIXELS)
    assert (image.height, image.width) == expected.shape[:2]
    np.testing.assert_allclose(decoded(image.encoded), expected, atol=6)
    written = Image.open(io.BytesIO(image.encoded))
    assert written.format == ("JPEG" if format == "JPEG" else "PNG") and not written.getexif()


def test_a_turned_jpeg_is_not_subsampled_and_stays_gray_if_it_was():
    color, grayscale = (
        Image.open(io.BytesIO(checked_image(file(image, "JPEG", exif=exif(3))).encoded))
        for image in (PICTURE, PICTURE.convert("L"))
    )
    assert [sampling[1:3] for sampling in color.layer] == [(1, 1)] * 3
    assert grayscale.mode == "L"


@pytest.mark.parametrize("options", [{"format": "TIFF"}, {"format": "JPEG", "exif": exif(3)}])
def test_what_is_written_again_has_no_profile(options):
    data = file(PICTURE, icc_profile=b"the profile", **options)
    assert b"the profile" in data
    assert "icc_profile" not in Image.open(io.BytesIO(checked_image(data).encoded)).info


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_whole_image_is_refused_with_a_reason(kind):
    data, reason = BAD[kind]
    with pytest.raises(BadImage, match=reason) as error:
        checked_image(data)
    assert len(str(error.value)) < 130 and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["JPEG", "progressive JPEG", "palette PNG", "lossy WebP", "lossless WebP"])
def test_a_file_cut_anywhere_is_refused(kind):
    data = KEPT[kind]
    for length in range(1, len(data)):
        with pytest.raises(BadImage):
            checked_image(data[:length])


@pytest.mark.parametrize(
    ("depth", "color", "width", "height", "taken"),
    [
        (16, 6, 9000, 9900, "4 channels of 2 bytes"),
        (16, 4, 9000, 9900, "4 channels of 2 bytes"),
        (16, 2, 9000, 5000, "3 channels of 2 bytes"),
        (8, 6, 9000, 9900, "4 channels of 1 bytes"),
    ],
)
def test_an_image_is_bounded_by_the_bytes_that_it_takes(monkeypatch, depth, color, width, height, taken):
    """Of few bytes itself, and of no more pixels than an image may have."""
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(BadImage, match=rf"bytes decoded: {width} x {height} pixels, {taken}"):
        checked_image(png(width, height, depth, color, b""))


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if "16-bit" in kind])
def test_16_bits_are_the_same_in_bands_of_a_row_and_of_two(monkeypatch, kind):
    whole = checked_image(WRITTEN[kind][0])
    for pixels in (1, 8):
        monkeypatch.setattr(sixteen_bits, "BAND_PIXELS", pixels)
        assert checked_image(WRITTEN[kind][0]) == whole


def test_16_bits_take_little_more_memory_than_8():
    values = np.zeros([1500, 2000, 4], np.uint16)
    data = png16(6, values)
    tracemalloc.start()
    checked_image(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What NumPy and Python take: the PNG's own buffers and a copy of the result, not 32 bytes a pixel.
    assert peak < 12 * values[:, :, 0].size


@pytest.mark.parametrize("width, height", [(61680, 17), (1024, 1024), (4097, 1024)])
def test_a_flat_png_of_many_megabytes_is_whole(width, height):
    """It is counted in pieces of 2^20 bytes; 17 rows of 61,681 are one byte more."""
    data = file(Image.new("L", (width, height), 255), "PNG")
    assert checked_image(data).encoded == data


def test_neither_warnings_nor_pillows_settings_tell_of_it():
    settings = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, PngImagePlugin.MAX_TEXT_CHUNK)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for data in [*KEPT.values(), *(row[0] for row in (*WRITTEN.values(), *BAD.values()))]:
            with contextlib.suppress(BadImage):
                checked_image(data)
    assert not heard
    after = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, PngImagePlugin.MAX_TEXT_CHUNK)
    assert after == settings


BOMBS = """
import pathlib, resource, sys
from tfrank.data.prepare.image_files import BadImage, checked_image
files = [path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checked_image(pathlib.Path(sys.argv[2]).read_bytes())
before = peak()
for file in files:
    try:
        checked_image(file)
    except BadImage:
        continue
    sys.exit("a bomb was accepted")
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_a_decompression_bomb_costs_no_memory(tmp_path):
    (tmp_path / "bombs").mkdir()
    frame = b"WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xfe\x3f\0" * 2 + b"ALPH\0\0\0\0"
    bombs = [data for kind, (data, _) in BAD.items() if "MB" in kind or "60,000" in kind or "10,000" in kind]
    for number, data in enumerate([*bombs, b"RIFF" + struct.pack("<I", len(frame)) + frame]):
        (tmp_path / "bombs" / str(number)).write_bytes(data)
    (tmp_path / "first").write_bytes(WRITTEN["RGBA WebP"][0])
    process = subprocess.run(
        [sys.executable, "-c", BOMBS, tmp_path / "bombs", tmp_path / "first"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert int(process.stdout.split()[-1]) < 20


def test_the_limits_are_what_tensorflow_decodes():
    for width, height in [(image_files.MAX_SIDE, 1), (1, image_files.MAX_SIDE)]:
        for format in ("JPEG", "PNG", "TIFF"):
            image = checked_image(file(Image.new("L", (width, height)), format))
            assert decoded(image.encoded).shape == (height, width, 3)


PHOTO = Image.fromarray(load_sample_image("china.jpg"))  # 640 x 427.


def psnr(one, other):
    return -10 * np.log10(np.mean((np.subtract(one, other, dtype=float) / 255) ** 2))


@pytest.mark.parametrize(
    "format, gives", [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "png"), ("TIFF", "png")]
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_image_is_shrunk_upright_to_its_shorter_side(format, gives, orientation):
    data = file(PHOTO, format, **({"exif": exif(orientation)} if format != "TIFF" else {}))
    image = checked_image(data, shorter_side=100)
    turned = orientation == 6 and format in ("JPEG", "PNG")
    assert (image.format, (image.width, image.height)) == (gives, (427, 640) if turned else (640, 427))
    assert image.changes == ("converted",) * (format == "TIFF") + ("shrunk",) + ("turned",) * turned
    pixels = np.rot90(decoded(image.encoded)) if turned else decoded(image.encoded)
    assert pixels.shape == (100, 150, 3)
    assert psnr(pixels, PHOTO.resize((150, 100), Image.Resampling.LANCZOS)) > 33


@pytest.mark.parametrize("shorter_side", [0, 427, 1000])
def test_an_image_that_is_not_larger_is_kept(shorter_side):
    data = file(PHOTO, "JPEG")
    image = checked_image(data, shorter_side=shorter_side)
    assert image.encoded == data and image.changes == ()


@pytest.mark.parametrize("size", [(640, 427), (427, 640), (2000, 301), (301, 300)])
@pytest.mark.parametrize("shorter_side", [1, 77, 128, 299])
def test_the_shorter_side_is_exact(size, shorter_side):
    image = checked_image(file(PHOTO.resize(size), "JPEG"), shorter_side=shorter_side)
    assert min(decoded(image.encoded).shape[:2]) == shorter_side


def test_a_large_image_that_is_damaged_is_refused():
    with pytest.raises(BadImage, match="truncated or damaged"):
        checked_image(file(PHOTO, "JPEG")[:-9000], shorter_side=50)


def test_heic_is_told_to_be_converted_whatever_its_name():
    with pytest.raises(BadImage, match="convert it to JPEG"):
        checked_image(b"\0\0\0\x18ftypheic" + bytes(100))
