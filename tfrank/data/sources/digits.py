"""scikit-learn's handwritten digits: 1,797 real scans of 8x8 pixels, included in that package."""

import io
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import PIL.Image
import sklearn.datasets

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.data.sources.image import SourceImage


def read_digits(_: str = "", *, train: Sequence[int], test: Sequence[int]) -> Iterator[SourceImage]:
    """Yields the scans as PNGs.

    Each training scan comes in eight versions, rotated and mirrored. Each version of a digit is a class of
    its own; Santoro et al. (2016) did this for Omniglot with rotations.

    Args:
        train, test: digits, 0 to 9.

    Raises:
        InputError: `train` or `test` is not a list, or has an entry that is not a digit.
    """
    for name, value in (("train", train), ("test", test)):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise checks.invalid(name, "a list of digits", value)
    if unknown := [digit for digit in (*train, *test) if digit not in range(10)]:
        raise InputError(f"There are no digits {unknown}; the classes of this data set are 0 to 9.")
    digits = sklearn.datasets.load_digits()
    for split, classes, versions in (("train", train, 8), ("test", test, 1)):
        for number in np.flatnonzero(np.isin(digits.target, list(classes))):
            # Scans have 17 grey levels, 0 to 16.
            grey = np.round(digits.images[number] * (255 / 16)).astype(np.uint8)
            for version in range(versions):
                yield _image(split, int(number), int(digits.target[number]), grey, version)


def _image(split, number, digit, grey, version):
    turns, mirrored = version % 4, version >= 4
    png = io.BytesIO()
    PIL.Image.fromarray(np.rot90(grey[:, ::-1] if mirrored else grey, turns)).save(png, "png")
    return SourceImage(
        split=split,
        path="",
        encoded=png.getvalue(),
        label=digit + 10 * version,
        text=f"{digit}" + f", turned by {90 * turns}" * (turns > 0) + ", mirrored" * mirrored,
        id=f"{digit}/{number:04d}-{version}",
    )
