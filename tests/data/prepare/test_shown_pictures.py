"""The stored picture is the one that a browser shows. The oracles share nothing with the code."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks import icc_profiles, picture_files, pictures
from tfrank.data.decoding import decode
from tfrank.data.images import ImageLoader
from tfrank.data.prepare.image_files import BadImage, checked_image, size_of
from tfrank.data.transforms import Transform

FILES = picture_files.all_files()
RGB = picture_files.RGB.astype(float)
GRAY = np.repeat(picture_files.GRAY[:, :, None], 3, axis=2).astype(float)


def stored(name):
    return decode(tf.constant(checked_image(FILES[name]).encoded)).numpy()


def over_white(pixels, alpha):
    return pixels * (alpha / 255) + 255 - alpha


def to_srgb(xyz):
    """8-bit sRGB of XYZ of D50."""
    linear = np.clip(xyz @ np.linalg.inv(icc_profiles.to_xyz(icc_profiles.PRIMARIES["sRGB"])).T, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def of_space(pixels, primaries, power=None):
    """8-bit sRGB of pixels of other primaries, and of a gamma in place of sRGB's curve."""
    share = pixels / 255
    curve = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    linear = share**power if power else curve
    return to_srgb(linear @ icc_profiles.to_xyz(icc_profiles.PRIMARIES[primaries]).T)


SPACES = {
    "Display P3": ("Display P3", None),
    "Display P3, version 4": ("Display P3", None),
    "Adobe RGB": ("Adobe RGB", 2.199),
    "ProPhoto": ("ProPhoto", 1.8),
    "linear": ("sRGB", 1),
    "Rec. 2020 by a table": ("Rec. 2020", 2.4),
}
# What is lost to compression.
LOSSY = {
    format: np.asarray(Image.open(io.BytesIO(FILES[format])).convert("RGB")).astype(float)
    for format in ("JPEG", "AVIF")
}
COLORS = {
    f"{format}, {name}": of_space(LOSSY.get(format, RGB), *space)
    for name, space in SPACES.items()
    for format in ("JPEG", "PNG", "PNG of 16 bits", "WebP", "TIFF", "AVIF")
    if f"{format}, {name}" in FILES
} | {
    "JPEG, sRGB": RGB,
    "JPEG, gray of gamma 2.2": RGB,
    "JPEG, inks": RGB,
    "JPEG, damaged": RGB,
    "PNG, cut off": RGB,
    "JPEG gray, gray of gamma 1.4": of_space(GRAY, "sRGB", 1.4),
    "PNG of 16 bits gray": GRAY,
    "PNG gray, gray of gamma 1.4": of_space(GRAY, "sRGB", 1.4),
    "PNG gray, ProPhoto": of_space(GRAY, "sRGB", 1.8),
    "TIFF of 16 bits, ProPhoto": of_space(RGB, "ProPhoto", 1.8),
    "TIFF gray, gamma 1.4": of_space(GRAY, "sRGB", 1.4),
    "PNG with alpha, linear": over_white(of_space(RGB, "sRGB", 1), GRAY),
    "JPEG of inks": RGB * (235 / 255),
    "JPEG of inks, damaged": RGB * (235 / 255),
    "PNG, gamma 1.00": of_space(RGB, "sRGB", 1),
    "PNG, gamma 0.45": RGB,
    "PNG gray, gamma 0.33": of_space(GRAY, "sRGB", 3),
    "PNG, primaries of ProPhoto": RGB,
    "PNG, gamma and primaries of ProPhoto": of_space(RGB, "ProPhoto", 2.2),
    "PNG, code (12, 13)": of_space(RGB, "Display P3"),
    "PNG, code (1, 8)": of_space(RGB, "sRGB", 1),
    "PNG, sRGB before others": RGB,
    "PNG, a profile before sRGB": of_space(RGB, "ProPhoto", 1.8),
    "PNG, gamma behind a damaged profile": of_space(RGB, "sRGB", 1),
    "PNG, gamma behind the pixels": RGB,
    "PNG, code before a profile": RGB,
}


@pytest.mark.parametrize("name", COLORS)
def test_colours_become_srgb_by_the_profile(name):
    lossy = name.startswith(("JPEG", "AVIF"))
    assert pictures.difference(stored(name), COLORS[name]) < (3 if lossy else 0.7)


def test_inks_become_srgb_by_their_profile():
    shown = to_srgb(icc_profiles.inks_to_xyz(np.asarray(picture_files.INKS).reshape(-1, 4) / 255))
    plain = RGB * (235 / 255)
    assert pictures.difference(stored("JPEG of inks, inks"), shown.reshape(RGB.shape)) < 3
    assert pictures.difference(plain, shown.reshape(RGB.shape)) > 20


ALPHA = picture_files.GRAY[:, :, None].astype(float)
PART = np.full(RGB.shape, 255.0)
PART[10:40, 20:60] = RGB[:30, :40]
SIXTEEN = np.array(picture_files.PALETTE.convert("RGB")).astype(float)
SHOWN = {
    **{name: RGB for name in FILES if "a wrong checksum" in name and "tRNS" not in name},
    **{
        name: RGB
        for name in FILES
        if name.startswith("TIFF of 16 bits") and name[-1] in "<>" and "alpha" not in name
    },
    "PNG, a wrong checksum of tRNS": SIXTEEN,
    "PNG, a second palette": RGB,
    "PNG of a clear palette that comes first": SIXTEEN,
    "PNG animated beside a still": RGB,
    "PNG animated, a small first picture": PART,
    "WebP animated, a small first picture": PART,
    "GIF": SIXTEEN,
    "TIFF gray of 16 bits, white is 0": GRAY,
    "TIFF gray, white is 0": GRAY,
    "TIFF of 16-bit inks": RGB * (235 / 255),
    "PPM gray of 16 bits": GRAY,
    "BMP 5-5-5": RGB,
    "BMP 5-6-5": RGB,
    "BMP 5-6-5 from top to bottom": RGB,
    "BMP 4-4-4": RGB,
    "BMP 4-4-4-4": over_white(RGB, ALPHA),
    "BMP 10-10-10": RGB,
    "BMP of 32 bits": RGB,
    "BMP of 32 bits with alpha": over_white(RGB, ALPHA),
    "BMP of run lengths": SIXTEEN,
    "BMP of run lengths of 4 bits": SIXTEEN,
    "AVIF 4:2:0": RGB,
    "AVIF gray": GRAY,
    "AVIF, orientation in XMP": RGB,
    "AVIF, orientation 6": np.rot90(RGB, -1),
    "WebP, orientation 6": RGB,
    "JPEG, orientation behind 300 kB": np.rot90(LOSSY["JPEG"], -1),
    "JPEG, 2 orientations": LOSSY["JPEG"],
    "JPEG, orientation < of kind 4": LOSSY["JPEG"],
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_stored_picture_is_the_one_that_a_browser_shows(name):
    coarse = "BMP 4" in name or "BMP 5" in name
    assert pictures.difference(stored(name), SHOWN[name]) < (8 if coarse else 3.5 if "AVIF" in name else 2)


def test_a_small_first_picture_of_a_gif_lies_on_white():
    picture = stored("GIF, a small first picture")
    np.testing.assert_array_equal(picture[5:45, 10:60], SIXTEEN[:40, :50])
    picture[5:45, 10:60] = 255
    assert (picture == 255).all()


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("PNG, a wrong checksum")])
def test_the_pixels_of_a_png_with_harmless_damage_are_kept(name):
    image = checked_image(FILES[name])
    expected = Image.open(io.BytesIO(image.encoded))
    assert expected.format == "PNG" and image.changes in ((), ("converted",))
    assert size_of(FILES[name]) == expected.size


def test_damaged_pixels_of_a_png_are_refused():
    data = FILES["PNG"]
    at = data.index(b"IDAT") + 2000
    with pytest.raises(BadImage, match="truncated or damaged"):
        checked_image(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])


def test_what_is_stored_is_stored_again_without_a_change():
    for name, data in FILES.items():
        once = checked_image(data).encoded
        assert checked_image(once).encoded == once, name


@pytest.mark.slow
@pytest.mark.skipif(
    not (pictures.CHROMIUM and pictures.MAGICK), reason="no Chromium or ImageMagick to compare with"
)
def test_all_files_are_stored_as_chromium_or_imagemagick_shows_them():
    # Where no run reaches, versions of Chromium show black or nothing, and ImageMagick the palette's first.
    shown = pictures.references({name: FILES[name] for name in FILES if name != "BMP of short run lengths"})
    assert len(shown) >= 300
    differ = {name: pictures.difference(stored(name), picture) for name, (_, picture) in shown.items()}
    assert {name: value for name, value in differ.items() if value >= pictures.MOST} == {}


# What TensorFlow's graph cannot have, as docs/production.md says.
BEYOND_THE_GRAPH = ("TIFF", "AVIF", "PPM", "BMP", "GIF")


def test_an_exported_model_decodes_the_stored_picture():
    loader = ImageLoader(transform=Transform(size=64), full_size=True)
    served = tf.function(loader.serve, input_signature=[tf.TensorSpec([], tf.string)])
    sure = [
        name
        for name in FILES
        if not name.startswith(BEYOND_THE_GRAPH)
        and name not in COLORS
        and not any(
            word in name for word in ("animated", *picture_files.PROFILES, "gamma", "primaries", "code")
        )
        and name not in ("PNG, a wrong checksum of the end", "PNG, a wrong checksum of eXIf")
    ]
    assert len(sure) > 60
    cosines = {name: pictures.cosine(served(tf.constant(FILES[name])).numpy(), stored(name)) for name in sure}
    assert {name: value for name, value in cosines.items() if value < pictures.LEAST} == {}
