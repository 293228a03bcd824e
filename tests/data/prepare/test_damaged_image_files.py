"""Damage at random: whatever `checked_image` accepts, TensorFlow decodes."""

import numpy as np
import pytest
from PIL import Image

from tests.data.prepare.test_image_files import KEPT, WRITTEN, chunk, decoded, exif, file
from tfrank.data.prepare.image_files import BadImage, checked_image


def damaged(data, rng):
    """The file with bytes replaced, inserted or left out; a PNG's checksums are mended most of the time."""
    data = bytearray(data)
    kind, place = rng.integers(6), rng.integers(len(data))
    if kind == 0:
        del data[place : place + rng.integers(1, 20)]
    elif kind == 1:
        data[place:place] = rng.bytes(rng.integers(1, 5))
    else:
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.choice([rng.integers(256), 0xFF, 0xD9, 0xC4, 0xDA, 0xE1, 0])
    return mended(bytes(data)) if data[1:4] == b"PNG" and rng.random() < 0.8 else bytes(data)


def mended(data):
    """The PNG with right checksums."""
    result, position = data[:8], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        result += chunk(data[position + 4 : position + 8], data[position + 8 : position + 8 + length])
        position += 12 + length
    return result


SMALL = Image.fromarray(np.random.default_rng(1).integers(0, 256, [6, 8, 3], np.uint8)).resize([37, 21])
FUZZED = {
    "JPEG": file(SMALL, "JPEG", quality=90),
    "grayscale JPEG": file(SMALL.convert("L"), "JPEG", exif=exif(1)),
    "progressive JPEG": file(SMALL, "JPEG", progressive=True, subsampling=0),
    "JPEG with restarts": file(SMALL, "JPEG", restart_marker_blocks=2),
    "turned JPEG": file(SMALL, "JPEG", exif=exif(6)),
    "PNG": file(SMALL, "PNG", exif=exif(1) + bytes(500)),
    "palette PNG": file(SMALL.quantize(16), "PNG", dpi=(72, 72), icc_profile=b"profile"),
    "black and white PNG": file(SMALL.convert("1"), "PNG"),
    "interlaced PNG": KEPT["interlaced PNG"],
    "16-bit PNG": WRITTEN["PNG of 16-bit RGB"][0],
    "PNG with a transparent colour": WRITTEN["palette PNG with a transparent colour"][0],
    "lossy WebP": file(SMALL, "WEBP"),
    "lossless WebP": file(SMALL, "WEBP", lossless=True),
    "WebP with metadata": file(SMALL, "WEBP", exif=exif(1)),
    "animated WebP": file(SMALL, "WEBP", save_all=True, append_images=[SMALL.rotate(180)]),
    "GIF": file(SMALL, "GIF"),
    "TIFF": file(SMALL, "TIFF", compression="tiff_lzw"),
    "BMP": file(SMALL, "BMP"),
    "PPM": file(SMALL, "PPM"),
}


def fuzz(kind, count):
    """Accepted and refused ones of `count` damaged files; what is accepted has to decode."""
    rng, accepted = np.random.default_rng(count), 0
    for _ in range(count):
        data = damaged(FUZZED[kind], rng)
        try:
            image = checked_image(data)
        except BadImage:
            continue
        assert decoded(image.encoded).shape == (image.height, image.width, 3)
        accepted += 1
    return accepted, count - accepted


@pytest.mark.parametrize("kind", FUZZED)
def test_whatever_is_accepted_decodes(kind):
    accepted, refused = fuzz(kind, 60)
    assert accepted and refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUZZED)
def test_whatever_is_accepted_of_many_decodes(kind):
    fuzz(kind, 1500)
