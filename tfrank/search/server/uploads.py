"""Images that requests bring: limits, and the part of an image that a box marks."""

import io

from PIL import Image

from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, TooLarge, checked_image, size_of
from tfrank.search.server.errors import RequestError

# Left, top, width and height in shares of the upright image.
Box = tuple[float, float, float, float]


def ready(data: bytes, box: Box | None, max_pixels: int) -> bytes:
    """Returns an image, or the part of it in a box, as the images of an index are embedded.

    Args:
        data: the bytes of an image file of any kind; they are checked.
        box: the part; None: all of it.
        max_pixels: most pixels of the file.

    Raises:
        RequestError: it is no image that can be read, or it has too many pixels.
    """
    check_pixels(data, max_pixels)
    try:
        if box is None:
            return checked_image(data, shorter_side=SHORTER_SIDE).encoded
        part = io.BytesIO()
        with Image.open(io.BytesIO(checked_image(data).encoded)) as image:
            image.crop(_pixels(box, image.size)).convert("RGB").save(part, "PNG", compress_level=1)
        return checked_image(part.getvalue(), shorter_side=SHORTER_SIDE).encoded
    except BadImage as error:
        raise RequestError(415, f"The image cannot be read: {error}.") from None


def check_pixels(data: bytes, most: int) -> None:
    """Raises RequestError if the header of an image promises too many pixels. Decodes nothing."""
    try:
        width, height = size_of(data)
    except TooLarge:
        raise RequestError(413, f"The image has more than {most:,} pixels. Send a smaller one.") from None
    # The check that follows names the reason.
    except BadImage:
        return
    if width * height > most:
        message = f"The image has {width:,} x {height:,} pixels, more than {most:,}. Send a smaller one."
        raise RequestError(413, message)


def _pixels(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom in pixels, of at least one pixel.

    >>> _pixels((0.25, 0, 0.5, 1), (8, 4)), _pixels((1, 1, 0.001, 0.001), (8, 4))
    ((2, 0, 6, 4), (7, 3, 8, 4))
    """
    left, top, width, height = box
    x, y = min(int(left * size[0]), size[0] - 1), min(int(top * size[1]), size[1] - 1)
    right = min(max(x + 1, round((left + width) * size[0])), size[0])
    bottom = min(max(y + 1, round((top + height) * size[1])), size[1])
    return x, y, right, bottom
