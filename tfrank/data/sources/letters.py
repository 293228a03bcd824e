"""Letters in the typefaces inside matplotlib: DejaVu, STIX and Computer Modern, whose licences its wheel has.

An image is a letter in a typeface, white on black, rendered and then turned, scaled and shifted at random.
"""

import io
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from tfrank.common import checks
from tfrank.common.checks import InputError, did_you_mean
from tfrank.data.sources.image import SourceImage

# The first and the last character of each range of Unicode that has letters of the alphabet.
ALPHABETS = {
    "Latin": ("AZ", "az"),
    "Greek": ("\u0391\u03a9", "\u03b1\u03c9"),
    "Cyrillic": ("\u0410\u042f", "\u0430\u044f"),
    "Armenian": ("\u0531\u0556", "\u0561\u0586"),
    "Georgian": ("\u10d0\u10f0",),
}
# Files in matplotlib. Its cmex10 and cmsy10 have symbols where their tables say letters.
TYPEFACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmtt10"),
)
# Pixels of a side of an image, and of the em of a typeface.
SIDE, EM = 56, 40
# The largest turn in degrees, the range of the scale, and the largest shift in pixels in each direction.
TURN, SCALE, SHIFT = 20.0, (0.8, 1.1), 3.0
# Letters look the same whose difference, as a vector of pixels, has less than this share of either's norm.
SAME = 0.15


def read_letters(
    _: str = "", *, train: Sequence[str], test: Sequence[str], seed: int = 0
) -> Iterator[SourceImage]:
    """Yields the letters of these alphabets in each typeface that has them; a class is a letter.

    Of the letters of a split that look the same in a typeface, such as the A of Latin, Greek and Cyrillic,
    only the first is a class.

    Args:
        train, test: names of `ALPHABETS`.
        seed: of the turns, scales and shifts.

    Raises:
        InputError: `train` or `test` is not a list of alphabets, or matplotlib has no typefaces.
    """
    for name, value in (("train", train), ("test", test)):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise checks.invalid(name, "a list of alphabets", value)
        for alphabet in value:
            if alphabet not in list(ALPHABETS):
                hint = did_you_mean(str(alphabet), ALPHABETS)
                raise InputError(f"There is no alphabet {alphabet!r}.{hint} There is {', '.join(ALPHABETS)}.")
    checks.integer("seed", seed, at_least=0)
    for split, alphabets in (("train", train), ("test", test)):
        drawings = {
            (alphabet, letter): drawn for alphabet in alphabets for letter, drawn in _draw(alphabet).items()
        }
        for alphabet, letter in distinct(drawings):
            for typeface, image in drawings[alphabet, letter].items():
                draws = np.random.default_rng([seed, ord(letter), TYPEFACES.index(typeface)])
                yield _image(split, alphabet, letter, typeface, _moved(image, draws))


def letters_of(alphabet: str) -> list[str]:
    """Returns the letters of an alphabet, capitals first, without those that have an accent.

    >>> "".join(letters_of("Latin"))
    'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
    """
    characters = [
        chr(code) for first, last in ALPHABETS[alphabet] for code in range(ord(first), ord(last) + 1)
    ]
    return [char for char in characters if char.isalpha() and not unicodedata.decomposition(char)]


def distinct(drawings: Mapping[tuple[str, str], Mapping[str, PIL.Image.Image]]) -> list[tuple[str, str]]:
    """Returns the keys without those whose drawing in a typeface looks like that of an earlier key.

    Args:
        drawings: for each alphabet and letter the drawing in each typeface, neither turned nor shifted.
    """
    keys = list(drawings)
    alike = np.zeros([len(keys), len(keys)], bool)
    for typeface in TYPEFACES:
        rows = [row for row, key in enumerate(keys) if typeface in drawings[key]]
        if rows:
            pixels = np.stack([np.ravel(drawings[keys[row]][typeface]) for row in rows]).astype(np.float64)
            products = pixels @ pixels.T
            norms = np.diag(products)
            distances = norms[:, np.newaxis] + norms - 2 * products
            alike[np.ix_(rows, rows)] |= distances < SAME**2 * np.minimum(norms[:, np.newaxis], norms)
    kept: list[int] = []
    for row in range(len(keys)):
        if not alike[row, kept].any():
            kept.append(row)
    return [keys[row] for row in kept]


def _draw(alphabet: str) -> dict[str, dict[str, PIL.Image.Image]]:
    """Returns the letters of an alphabet, each with its drawing in every typeface that has it."""
    drawings: dict[str, dict[str, PIL.Image.Image]] = {letter: {} for letter in letters_of(alphabet)}
    for typeface in TYPEFACES:
        path, known = _typeface(typeface)
        font = PIL.ImageFont.truetype(path, EM, layout_engine=PIL.ImageFont.Layout.BASIC)
        for letter in drawings:
            if ord(letter) in known:
                drawings[letter][typeface] = _drawn(letter, font)
    return drawings


def _typeface(name: str) -> tuple[str, Mapping[int, int]]:
    """Returns the path of a typeface, and its character map, whose keys are the characters that it has."""
    # Only this data set needs it.
    import matplotlib
    from matplotlib.ft2font import FT2Font

    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    if not os.path.exists(path):
        raise InputError(
            f"This matplotlib comes without the typeface {path}. Install it from PyPI, as pip does; or train"
            " on handwritten digits, by the config configs/digits.py, which needs none."
        )
    return path, FT2Font(path).get_charmap()


def _drawn(letter: str, font: PIL.ImageFont.FreeTypeFont) -> PIL.Image.Image:
    """Returns the letter, the box of its ink in the centre."""
    image = PIL.Image.new("L", (SIDE, SIDE))
    left, top, right, bottom = font.getbbox(letter)
    place = ((SIDE - left - right) / 2, (SIDE - top - bottom) / 2)
    PIL.ImageDraw.Draw(image).text(place, letter, 255, font=font)
    return image


def _moved(image: PIL.Image.Image, draws: np.random.Generator) -> PIL.Image.Image:
    """Returns the image turned and scaled about its centre, then shifted."""
    turn, scale = np.radians(draws.uniform(-TURN, TURN)), draws.uniform(*SCALE)
    # The map from a pixel of the result to its place in the image.
    back = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) / scale
    centre = SIDE / 2
    offset = centre - back @ (centre + draws.uniform(-SHIFT, SHIFT, 2))
    rows = np.column_stack([back, offset])
    return image.transform(
        image.size, PIL.Image.Transform.AFFINE, tuple(rows.ravel()), PIL.Image.Resampling.BICUBIC
    )


def _image(split, alphabet, letter, typeface, image):
    png = io.BytesIO()
    image.save(png, "png")
    return SourceImage(
        split=split,
        path="",
        encoded=png.getvalue(),
        label=ord(letter),
        text=f"{letter} {unicodedata.name(letter).capitalize()}",
        id=f"{alphabet}/{ord(letter):04X}/{typeface}",
    )
