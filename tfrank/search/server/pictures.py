"""The files of the images of an index."""

import contextlib
import hashlib
import os

from tfrank.common import files
from tfrank.data.prepare.image_files import BadImage, checked_image
from tfrank.search.server.errors import RequestError
from tfrank.search.server.versions import Opened


def original(opened: Opened, image_id: str) -> bytes:
    """Returns the file of an image as it was indexed, or its thumbnail where that is not there any more."""
    with contextlib.suppress(RequestError):
        return image_file(opened, image_id)
    return thumbnail(opened, image_id)


def image_file(opened: Opened, image_id: str) -> bytes:
    """Returns the file of an image. Raises RequestError if it is not there any more.

    That of an image that was sent to a server lies in the index.
    """
    if opened.index.metadata(image_id)["path"]:
        return listed_file(opened, image_id)
    try:
        return opened.index.files.read_original(image_id)
    except OSError:
        raise RequestError(404, "The file of this image is missing. Its thumbnail is there.") from None


def listed_file(opened: Opened, image_id: str) -> bytes:
    """Returns the file of an image. Raises RequestError if it is not at its place, as it was indexed.

    The path is that of the index, which somebody else may have made, and leads anywhere. So what is read is
    sent only if it is, byte for byte, what was indexed.
    """
    row = opened.index.metadata(image_id)
    with contextlib.suppress(OSError, ValueError):
        if row["path"] and row.get("file_sha256"):
            with files.open_regular(files.path_of(row["path"])) as file:
                if os.fstat(file.fileno()).st_size == row["bytes"]:
                    data = file.read()
                    if hashlib.sha256(data).hexdigest() == row["file_sha256"]:
                        return data
    raise RequestError(
        404, "The file of this image is not at its place, as it was indexed. Its thumbnail is."
    )


def thumbnail(opened: Opened, image_id: str) -> bytes:
    """Returns the thumbnail of an image, a JPEG. Raises RequestError if it is missing."""
    try:
        return opened.index.files.read_thumbnail(image_id)
    except OSError:
        raise RequestError(404, "The thumbnail of this image is missing.") from None


def shown(data: bytes) -> tuple[bytes, str]:
    """Returns an image file as browsers show it, upright, and its media type."""
    try:
        image = checked_image(data)
    except BadImage as error:
        raise RequestError(404, f"The file of this image cannot be read any more: {error}.") from None
    return image.encoded, f"image/{image.format}"
