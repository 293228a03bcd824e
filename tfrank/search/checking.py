"""Images of an index are read and checked ahead of the model, and shrunk to thumbnails."""

import collections
import concurrent.futures
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.search import earlier
from tfrank.search.images import Listed
from tfrank.search.moved import LeavingFiles

# Longer side in pixels of thumbnails.
THUMBNAIL_SIDE = 256
# The file of an image that is sent to a server is kept as it is up to this size, and shrunk beyond.
ORIGINAL_BYTES = 8 * 2**20
# Number of images that are read and checked ahead of the model.
AHEAD = 128


class Checked(NamedTuple):
    """A checked image: the bytes that are embedded, its thumbnail, its size in pixels, and what is kept.

    `digest` is the SHA-256 of the file; `original` the file of an image that was sent to a server, else b"".
    `embedding` is `[dim]` if the file is known; then there are no bytes to embed.
    """

    image: Listed
    encoded: bytes
    thumbnail: bytes
    width: int
    height: int
    digest: str
    original: bytes
    embedding: np.ndarray | None = None


def checked_ahead(
    images: Iterable[Listed], skipped: list[tuple[str, str]], leaving: LeavingFiles
) -> Iterator[Checked]:
    """Yields the good images in order; threads read and check them ahead of the model.

    Args:
        images: the images.
        skipped: id and reason of each image that is not good are added to it.
        leaving: files that are known.
    """
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting: collections.deque = collections.deque()
        for image in images:
            waiting.append((image, pool.submit(_check, image, leaving)))
            if len(waiting) > AHEAD:
                yield from _if_good(*waiting.popleft(), skipped)
        for image, checking in waiting:
            yield from _if_good(image, checking, skipped)


def _if_good(image, checking, skipped):
    """Yields the checked image, or adds the reason why it is bad to `skipped`."""
    try:
        yield checking.result()
    except (BadImage, OSError) as error:
        skipped.append((image.id, getattr(error, "strerror", None) or str(error)))


def _check(image: Listed, leaving: LeavingFiles) -> Checked:
    """Reads and checks an image file. Raises BadImage or OSError if that fails."""
    data = image.read()
    original, digest = b"", hashlib.sha256(data).hexdigest()
    known = leaving.find(image.id, digest) if image.path else None
    if known and known.thumbnail:
        return Checked(
            image, b"", known.thumbnail, known.width, known.height, digest, original, known.embedding
        )
    checked = checked_image(data, shorter_side=SHORTER_SIDE)
    if not image.path:
        # Shrunk, the model sees the same.
        original = data if len(data) <= ORIGINAL_BYTES else checked.encoded
    small = thumbnail(checked.encoded)
    embedding = known.embedding if known else None
    return Checked(image, checked.encoded, small, checked.width, checked.height, digest, original, embedding)


def by_thumbnail(unread: earlier.Thumbnail) -> Checked | None:
    """Returns an image that cannot be read as its thumbnail shows it; None if there is no good thumbnail."""
    try:
        small = unread.image.read()
        encoded = checked_image(small).encoded
    except (BadImage, OSError):
        return None
    # What its file held is not known.
    return Checked(unread.image, encoded, small, unread.width, unread.height, "", b"")


def thumbnail(encoded: bytes) -> bytes:
    """Returns a JPEG of the image, at most `THUMBNAIL_SIDE` pixels a side."""
    with Image.open(io.BytesIO(encoded)) as image:
        image.draft("RGB", (THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        small = image.convert("RGB")
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
