"""The images of the version before that an update takes over: all, uploads, and those that it cannot read."""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tfrank.common import files
from tfrank.search.images import Listed, read_at
from tfrank.search.index_folder import COLUMNS, MAPPED, IndexFolder, Version


class Thumbnail(NamedTuple):
    """An image of which only the thumbnail can be read, by `image.read`, and its size in pixels."""

    image: Listed
    width: int
    height: int


def as_indexed(index: IndexFolder, version: Version) -> Iterator[Listed]:
    """Yields the images of a version. Their `read` returns what was indexed, or raises OSError.

    Of none it is known that it is gone, so an update keeps those that it cannot read.
    """
    for part in version.parts:
        for row in index.read_part(part).drop_columns("embedding").to_pylist():
            read = functools.partial(_read_as_indexed, index, row)
            yield _listed(row, read)._replace(size=max(row["bytes"], 0))


def mapped(index: IndexFolder, version: Version) -> list[Listed]:
    """Returns the images of a version whose embeddings were mapped from another model's, see `upgrading`."""
    parts = [index.read_part(part, ["id", MAPPED]) for part in version.parts if index.has(part, MAPPED)]
    marked = {row["id"] for part in parts for row in part.to_pylist() if row[MAPPED]}
    return [image for image in as_indexed(index, version) if image.id in marked]


def _read_as_indexed(index: IndexFolder, row: Mapping[str, Any]) -> bytes:
    if not row["path"]:
        return _read_upload(index, row["id"])
    data = read_at(row["path"], row["bytes"])
    # The path is that of the index, which somebody else may have made, and leads anywhere.
    if hashlib.sha256(data).hexdigest() != row.get("file_sha256"):
        raise OSError("it is not the image that was indexed")
    return data


def uploads(index: IndexFolder, version: Version | None, ids: Collection[str]) -> Iterator[Listed]:
    """Yields images that were sent to a server, as they were: they are read from their originals.

    Where an index of an earlier release has no original, the thumbnail is read.
    """
    for row in _rows(index, version, ids):
        yield _listed(row, functools.partial(_read_upload, index, row["id"]))


def unread(before: Collection[str], wanted: Mapping[str, Listed], bad: Collection[str]) -> set[str]:
    """Returns the images of the version before that cannot be read now, and may still exist.

    Args:
        before: ids of the images of the version before.
        wanted: the images and folders that were listed, by id.
        bad: ids of those that could not be read.
    """
    folders = tuple(image_id for image_id in bad if wanted[image_id].is_folder)
    there = {key for key in bad if key in before and not wanted[key].is_gone()}
    # What cannot be looked at may be an image as well as a folder.
    return there | {key for key in before if key not in wanted and f"{key}/".startswith(folders)}


def thumbnails(
    index: IndexFolder, version: Version, ids: Collection[str], wanted: Mapping[str, Listed]
) -> Iterator[Thumbnail]:
    """Yields images that cannot be read, with what is known of them now or was known before.

    Their size is unknown, so that they are embedded again once they can be read.
    """
    for row in _rows(index, version, ids):
        image = _listed(row, functools.partial(index.read_thumbnail, row["id"]))
        if row["id"] in wanted:
            now = wanted[row["id"]]
            image = image._replace(path=now.path, label=now.label, others=now.others)
        yield Thumbnail(image._replace(size=-1, modified=0), row["width"], row["height"])


def _rows(index: IndexFolder, version: Version | None, ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the columns of images of a version."""
    for part in version.parts if version and ids else ():
        yield from (
            row for row in index.read_part(part).drop_columns("embedding").to_pylist() if row["id"] in ids
        )


def _listed(row: Mapping[str, Any], read: Callable[[], bytes]) -> Listed:
    others = {name: value for name, value in row.items() if name not in {*COLUMNS, MAPPED}}
    return Listed(row["id"], row["path"], row["label"], others, read, row["bytes"], row["modified"])


def _read_upload(index: IndexFolder, image_id: str) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return index.read_original(image_id)
    return index.read_thumbnail(image_id)


def remove_pictures(index: IndexFolder, ids: Iterable[str]) -> None:
    """Removes the thumbnails and originals of images."""
    for image_id in ids:
        files.remove(index.thumbnail(image_id))
        files.remove(index.original(image_id))


def remove_other_pictures(index: IndexFolder, paths: Mapping[str, str]) -> None:
    """Removes all thumbnails and originals but those of these images; also what a killed run left.

    Args:
        index: the index.
        paths: the path of each image, by id; "" for one that was sent to a server, whose original stays.
    """
    kept = {os.path.basename(index.thumbnail(image_id)) for image_id in paths}
    kept |= {os.path.basename(index.original(image_id)) for image_id, path in paths.items() if not path}
    for folder in ("thumbnails", "originals"):
        if os.path.isdir(index.path(folder)):
            for name in set(os.listdir(index.path(folder))) - kept:
                files.remove(index.path(folder, name))
