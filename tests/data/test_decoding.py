"""Photos decoded to no more pixels than are looked at, and upright as viewers show them."""

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import ExifTags, Image, ImageOps
from sklearn.datasets import load_sample_images

from tfrank.data.decoding import RATIOS, SPARE, decode, decode_reduced, exif_orientation, full_extent, upright
from tfrank.data.images import ImageLoader
from tfrank.data.prepare.image_files import BadImage, checked_image
from tfrank.data.transforms import Transform, evaluation_transform, training_transform

# A temple and a flower, 640 x 427 pixels.
PHOTOS = [Image.fromarray(pixels) for pixels in load_sample_images().images]
PHOTO = PHOTOS[0]


def jpeg(image, orientation=None, **options):
    exif = Image.Exif()
    if orientation:
        exif[ExifTags.Base.Orientation] = orientation
        options["exif"] = exif.tobytes()
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def cosine(one, other):
    one, other = (np.ravel(image).astype(float) for image in (one, other))
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def assert_looks_the_same(one, other):
    difference = np.abs(np.subtract(one, other, dtype=float))
    assert difference.mean() < 2 and cosine(one, other) > 0.999


# No more pixels than are looked at.


def test_a_jpeg_is_shrunk_by_itself_as_far_as_twice_the_pixels_are_left():
    encoded = jpeg(PHOTO)
    for least_side, rows in ((427, 427), (107, 427), (106, 214), (54, 214), (53, 107), (26, 54), (1, 54)):
        picture = decode_reduced(encoded, least_side)
        assert picture.pixels.shape[0] == rows
        assert min(picture.extent) >= min(427, SPARE * least_side)
        np.testing.assert_allclose(picture.extent / picture.extent[1], [427 / 640, 1], rtol=1e-6)


@pytest.mark.parametrize("kind", ["RGB", "L", "CMYK", "progressive"])
def test_what_is_not_shrunk_is_decoded_as_ever(kind):
    encoded = jpeg(PHOTO, progressive=True) if kind == "progressive" else jpeg(PHOTO.convert(kind))
    np.testing.assert_array_equal(decode_reduced(encoded, 300).pixels, decode(tf.constant(encoded)))


def test_a_png_is_decoded_whole():
    file = io.BytesIO()
    PHOTO.save(file, "PNG")
    np.testing.assert_array_equal(decode_reduced(file.getvalue(), 1).pixels, np.asarray(PHOTO))


TRANSFORMS = {
    "warp": Transform(size=48, resize=52),
    "random_resized": Transform(size=40, resize=48, crop="random_resized", flip=0.5),
    "random_part": Transform(size=40, resize=48, crop="random_part"),
    "scaled": Transform(size=30, resize=40, crop="scaled", rotation=20, scale=(0.9, 1.2)),
}


@pytest.mark.parametrize("photo", range(len(PHOTOS)))
@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("ratio", RATIOS[1:])
@pytest.mark.parametrize("cut", [0, 3, 5])
def test_transforms_of_a_shrunk_jpeg_are_those_of_the_whole_within_two_of_255(photo, kind, ratio, cut):
    transform, photo = TRANSFORMS[kind], PHOTOS[photo]
    # As large as this ratio just takes, with sides that it does not divide.
    side = SPARE * ratio * transform.training_side() + cut
    size = [max(side, round(side * length / 427)) for length in photo.size]
    encoded = jpeg(photo.resize(size, Image.Resampling.LANCZOS))
    picture, all_of_it = decode_reduced(encoded, transform.training_side()), decode(tf.constant(encoded))
    assert picture.pixels.shape[0] == -(-all_of_it.shape[0] // ratio)
    got, wanted = (evaluation_transform(image, transform) for image in (picture, all_of_it))
    assert_looks_the_same(got, wanted)
    for number in range(3):
        seed = tf.constant([0, number])
        got, wanted = (training_transform(image, transform, seed) for image in (picture, all_of_it))
        assert_looks_the_same(got, wanted)


def test_an_image_that_training_leaves_at_its_size_and_one_at_full_size_are_decoded_whole():
    assert Transform(size=30, crop="scaled").training_side() is None
    full = ImageLoader(transform=Transform(size=30), full_size=True)
    assert full.serve(tf.constant(jpeg(PHOTO))).shape == (427, 640, 3)


# Upright.


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("least_side", [20, 50, 300])
def test_a_turned_photo_is_served_as_pillow_turns_it(orientation, least_side):
    encoded = jpeg(PHOTO.crop((0, 0, 637, 421)), orientation)
    decoded = Image.fromarray(decode(tf.constant(encoded)).numpy())
    decoded.getexif()[ExifTags.Base.Orientation] = orientation
    wanted = np.asarray(ImageOps.exif_transpose(decoded))
    picture = upright(full_extent(tf.constant(np.asarray(decoded))), exif_orientation(encoded))
    np.testing.assert_array_equal(picture.pixels, wanted)
    transform = Transform(size=least_side - 3, resize=least_side)
    served = ImageLoader(transform=transform).serve(tf.constant(encoded))
    assert_looks_the_same(served, evaluation_transform(tf.constant(wanted), transform))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shorter_side", [0, 300])
def test_a_turned_photo_is_served_as_its_record_is_tested(orientation, shorter_side):
    encoded, loader = jpeg(PHOTO, orientation), ImageLoader(transform=Transform(size=64, resize=72))
    record = checked_image(encoded, shorter_side=shorter_side).encoded
    wanted = evaluation_transform(decode(tf.constant(record)), loader.transform)
    assert_looks_the_same(loader.serve(tf.constant(encoded)), wanted)


def segment(marker, content):
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def exif(order, orientation, *, before=0, kind=3, count=1, at=8):
    """An EXIF segment with some tags before the orientation."""
    tags = [struct.pack(order + "HHII", 0x200 + n, 4, 1, 7) for n in range(before)]
    value = struct.pack(
        order + ("HH" if kind == 3 else "I"), *([orientation, 0] if kind == 3 else [orientation])
    )
    tags.append(struct.pack(order + "HHI", 0x112, kind, count) + value)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", at)
    content = start + bytes(at - 8) + struct.pack(order + "H", len(tags)) + b"".join(tags) + bytes(4)
    return segment(0xE1, b"Exif\0\0" + content)


PLAIN = jpeg(PHOTO.resize((32, 24)))
JFIF_END = 4 + struct.unpack(">H", PLAIN[4:6])[0]


def with_segments(*segments):
    return PLAIN[:2] + b"".join(segments) + PLAIN[2:]


XMP = (
    b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'><rdf:RDF xmlns:rdf="
    b"'http://www.w3.org/1999/02/22-rdf-syntax-ns#'><rdf:Description xmlns:tiff='http://ns.adobe.com/tiff/1.0/'"
    b" tiff:Orientation='6'/></rdf:RDF></x:xmpmeta>"
)


def png_with(name, late=False):
    """A PNG with orientation 6 in a chunk before or behind its pixels."""
    file = io.BytesIO()
    PHOTO.resize((32, 24)).save(file, "PNG")
    data, content = file.getvalue(), exif("<", 6)[10:]
    extra = struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    at = data.index(b"IEND" if late else b"IDAT") - 4
    return data[:at] + extra + data[at:]


# By the rules of Chromium, see `benchmarks.pictures`.
FOUND = {
    "little-endian": with_segments(exif("<", 6)),
    "big-endian": with_segments(exif(">", 6)),
    "after others": PLAIN[:JFIF_END] + segment(0xE2, bytes(60_000)) + exif("<", 6) + PLAIN[JFIF_END:],
    "after XMP": with_segments(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0"), exif(">", 6)),
    "after bytes of filling": with_segments(b"\xff\xff", exif("<", 6)),
    "among many tags": with_segments(exif("<", 6, before=40)),
    "a directory elsewhere": with_segments(exif(">", 6, at=100)),
    "after many segments": with_segments(
        *[segment(0xE2, bytes(60_000))] * 5, *[segment(0xFE, b"")] * 99, exif("<", 6)
    ),
    "after one that does not exist": with_segments(exif("<", 6, before=1)),
    "in the first of two": with_segments(exif("<", 6), exif("<", 3)),
    "in a PNG": png_with(b"eXIf"),
}
NOT_FOUND = {
    "nothing": b"",
    "one byte": b"\xff",
    "three bytes of a JPEG": b"\xff\xd8\xff",
    "text": b"This is no image.",
    "no EXIF": PLAIN,
    "orientation 0": with_segments(exif("<", 0)),
    "orientation 9": with_segments(exif(">", 9)),
    "two orientations": with_segments(exif(">", 6, count=2)),
    "in four bytes": with_segments(exif("<", 6, kind=4)),
    "in XMP": with_segments(segment(0xE1, XMP)),
    "in the second of two": with_segments(segment(0xE1, b"Exif\0\0junk"), exif("<", 6)),
    "in a chunk of a PNG that is none": png_with(b"exIf"),
    "behind the pixels of a PNG": png_with(b"eXIf", late=True),
    "a byte order that does not exist": with_segments(segment(0xE1, b"Exif\0\0XX*\0" + bytes(40))),
    "a directory beyond the end": with_segments(segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff")),
    "a segment beyond the end": PLAIN[:2] + b"\xff\xe1\xff\xff",
    "EXIF cut off": with_segments(exif("<", 6))[:30],
    "after the pixels": PLAIN + exif("<", 6),
}


@pytest.mark.parametrize("kind", FOUND)
def test_the_orientation_is_found_wherever_browsers_heed_it(kind):
    assert exif_orientation(FOUND[kind]) == 6
    assert "turned" in checked_image(FOUND[kind]).changes


@pytest.mark.parametrize("kind", NOT_FOUND)
def test_without_a_valid_orientation_it_is_1(kind):
    assert exif_orientation(NOT_FOUND[kind]) == 1
    with contextlib.suppress(BadImage):
        assert "turned" not in checked_image(NOT_FOUND[kind]).changes


def test_the_orientation_of_damaged_metadata_is_one_that_exists():
    rng, found = np.random.default_rng(0), tf.function(exif_orientation, reduce_retracing=True)
    for _ in range(300):
        data = np.frombuffer(FOUND["little-endian"][:80], np.uint8).copy()
        data[rng.integers(2, 60, 3)] = rng.integers(0, 256, 3)
        assert 1 <= found(tf.constant(data.tobytes())) <= 8


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_transparency_is_served_over_white_as_its_record_has_it(format, mode):
    image = PHOTO.resize((64, 48)).convert(mode)
    if "A" in mode:
        image.putalpha(PHOTOS[1].resize((64, 48)).convert("L"))
    options = {"transparency": 3} if (mode, format) == ("P", "PNG") else {}
    file = io.BytesIO()
    image.save(file, format, lossless=True, **options)
    loader = ImageLoader(transform=Transform(size=30), full_size=True)
    wanted = decode(tf.constant(checked_image(file.getvalue()).encoded))
    np.testing.assert_allclose(loader.serve(tf.constant(file.getvalue())), wanted, atol=1)


@pytest.mark.parametrize("data", [b"", b"no image", b"\xff\xd8\xff", PLAIN[:100]])
def test_what_is_no_image_is_refused_as_before(data):
    for full_size in (False, True):
        loader = ImageLoader(transform=Transform(size=4), full_size=full_size)
        with pytest.raises(tf.errors.InvalidArgumentError):
            loader.serve(tf.constant(data))
