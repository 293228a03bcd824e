"""scikit-learn's handwritten digits: 1,797 real scans of 8x8 pixels, bundled with that package."""

import io
from collections.abc import Iterator, Sequence

import matplotlib.image
import numpy as np
import sklearn.datasets

from tfrank.checks import InputError
from tfrank.data.records import ImageRecord


def read_digits(classes: Sequence[int], *, turned: bool = False) -> Iterator[ImageRecord]:
    """The scans of these digits, as PNGs.

    Args:
        classes: digits, 0 to 9.
        turned: whether each scan comes in its eight turned and mirrored versions too, and each version
            of a digit is a class of its own (as Santoro et al., 2016, did for Omniglot by turning).
    """
    digits = sklearn.datasets.load_digits()
    unknown = sorted(set(classes) - set(range(10)))
    if unknown:
        raise InputError(f"There are no digits {unknown}; the classes of this data set are 0 to 9.")
    for number in np.flatnonzero(np.isin(digits.target, list(classes))):
        # Scans have 17 grey levels, 0 to 16.
        grey = np.round(digits.images[number] * (255 / 16)).astype(np.uint8)
        digit = int(digits.target[number])
        for version in range(8 if turned else 1):
            turns, mirrored = version % 4, version >= 4
            png = io.BytesIO()
            image = np.rot90(grey[:, ::-1] if mirrored else grey, turns)
            matplotlib.image.imsave(png, image, cmap="gray", vmin=0, vmax=255, format="png")
            text = f"{digit}" + f", turned by {90 * turns}" * (turns > 0) + ", mirrored" * mirrored
            name = f"{digit}/{number:04d}-{version}"
            yield ImageRecord(png.getvalue(), "png", digit + 10 * version, text, f"{name}.png", name)
