"""An image of a report: a small JPEG, and what is said of it."""

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tfrank.common import checks

# Thumbnails have more than twice the pixels of their display size, so that they can be enlarged. Images up to
# `SMALL` pixels wide and high are shown with visible pixels.
THUMBNAIL, QUALITY, SMALL = 256, 78, 64
# Range of aspect ratios, width / height, in the layout: narrower and wider images get a margin.
NARROWEST, WIDEST = 0.5, 2.5


@dataclass(frozen=True)
class ShownImage:
    """An image in a row of images.

    Attributes:
        jpeg: the encoded image, as from `thumbnail`.
        caption: text below it, such as the name of its class; text or UTF-8 bytes.
        correct: whether it is of the query's class; None if that is not known, and for a query.
        similarity: its similarity to the query.
        rank: its rank, from 1; None for a query.
        file: its name, such as a file name.
        aspect: width / height.
        small: whether it has so few pixels that they are shown as visible squares.
    """

    jpeg: bytes
    caption: str | bytes = ""
    correct: bool | None = None
    similarity: float | None = None
    rank: int | None = None
    file: str | bytes = ""
    aspect: float = 1.0
    small: bool = False


def shown_image(image: np.ndarray, **fields: Any) -> ShownImage:
    """The `ShownImage` of an image, `[height, width, 3]` uint8; `fields` are its other fields."""
    encoded = thumbnail(image)
    height, width = np.shape(image)[:2]
    return ShownImage(encoded, aspect=width / height, small=max(height, width) <= SMALL, **fields)


def thumbnail(image: np.ndarray, height: int = THUMBNAIL) -> bytes:
    """An image as a small JPEG with its own aspect ratio.

    It has at most `height` rows of pixels and 2.5 times as many columns. An image up to `SMALL` pixels wide
    and high is enlarged to at least `height` rows or columns, so that each pixel becomes a square.

    Args:
        image: `[height, width, 3]` uint8.
        height: maximum height in pixels.

    Raises:
        InputError: the image has another shape or type.

    >>> Image.open(io.BytesIO(thumbnail(np.zeros([512, 1024, 3], np.uint8)))).size
    (512, 256)
    >>> Image.open(io.BytesIO(thumbnail(np.zeros([8, 8, 3], np.uint8), 100))).size
    (104, 104)
    """
    most = checks.integer("height", height, at_least=1)
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        received = f"{image.dtype} of shape {image.shape}"
        raise checks.invalid("image", "uint8 pixels [height, width, 3]", received)
    height, width, _ = image.shape
    if max(height, width) <= SMALL:
        times = math.ceil(most / max(height, width))
        small = Image.fromarray(image).resize((width * times, height * times), Image.Resampling.NEAREST)
    else:
        small = Image.fromarray(image)
        small.thumbnail((round(most * WIDEST), most), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()
