"""The images that are put into an index: those of a folder, of a table (CSV, parquet), or of records."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.prepare.archives import is_archive
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import RecordReader, class_text, encoded_image
from tfrank.data.sources.tables import TEXTS, read_images
from tfrank.data.sources.walk import SUFFIXES, Walk, is_ours
from tfrank.search import labels
from tfrank.search.index_folder import COLUMNS, MAPPED

# Columns of a table that the index fills in itself.
OWN = {*COLUMNS, MAPPED, "embedding"} - set(TEXTS)


class Listed(NamedTuple):
    """An image to put into an index, or a folder that cannot be read.

    Attributes:
        id: unique text; by default the path relative to the folder, or to the table. That of a folder ends
            in a slash. Bytes of a name that are no UTF-8 are written as \\xe9.
        path: of the image file, absolute, as `files.text_of` gives it; for a record the shard and the
            record's first byte.
        label: its class; "" if unknown. In a folder, the name of the folder inside it that holds the image.
        others: further columns of a table, by name; for a record its `split`.
        read: returns the bytes of the image file.
        size: number of bytes of the file or record; -1 if it is not known.
        modified: when the file was changed last, in nanoseconds since 1970; for a record its checksum.
        is_folder: whether it is a folder that cannot be read; `read` raises the error.
    """

    id: str
    path: str
    label: str
    others: Mapping[str, Any]
    read: Callable[[], bytes]
    size: int
    modified: int
    is_folder: bool = False

    def is_gone(self) -> bool:
        """Returns whether there is no such file any more; a link that leads nowhere is not gone."""
        if self.size >= 0:
            return False
        try:
            os.lstat(files.path_of(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            pass
        return False


def listed_images(source: str) -> list[Listed]:
    """Lists the images of a folder, with all folders inside it, of a table, or of records, in order.

    A table, CSV or parquet, has a column `path`, relative to the file, and may have `id`, `label` and any
    others, which become columns of the index. What is an image of a folder is said at `data.sources.walk`;
    what is left out is printed. Of a folder of records, as `prepare` writes it, all splits are listed.

    Raises:
        InputError: the source does not exist or has no image, or an id occurs twice.
    """
    images = list(_kind_of(source)(source))
    if not images:
        raise InputError(f"{source} has no images. Images end in {', '.join(SUFFIXES)}.")
    seen = set()
    for image in images:
        if image.id in seen:
            raise InputError(f"{source} has the id {image.id!r} twice. Make the ids unique.")
        seen.add(image.id)
    return images


def _kind_of(source: str) -> Callable[[str], Iterator[Listed]]:
    """Returns the function that lists the images of a source."""
    if is_archive(source):
        raise InputError(f"{source} is an archive. Unpack it and give the folder.")
    if os.path.isfile(source):
        return _of_table
    return _of_records if load_summary(source) else _of_folder


def _of_records(folder: str) -> Iterator[Listed]:
    for split in load_summary(folder)["splits"]:
        index = open_split(folder, split)
        reader = RecordReader(index)
        _, firsts, classes = np.unique(index.label, return_index=True, return_inverse=True)
        names = [labels.normalized(class_text(serialized)) for serialized in reader.read(firsts)]
        shards = [files.text_of(os.path.abspath(shard)) for shard in index.shards]
        for row, image_id in enumerate(index.id):
            yield Listed(
                files.text_of(os.fsdecode(image_id)),
                f"{shards[index.shard[row]]}:{index.offset[row]}",
                names[classes[row]],
                {"split": split},
                functools.partial(_read_record, reader, row),
                int(index.length[row]),
                int(index.checksum[row]),
            )


def _read_record(reader, row):
    (serialized,) = reader.read([row])
    return encoded_image(serialized)


def read_at(path: str, size: int) -> bytes:
    """Returns the bytes of an image by the `path` and the `size` of a `Listed`. Raises OSError."""
    shard, _, offset = path.rpartition(":")
    if not offset.isdecimal() or os.path.exists(files.path_of(path)):
        return _read(files.path_of(path))
    with files.open_regular(files.path_of(shard)) as file:
        file.seek(int(offset))
        try:
            return encoded_image(file.read(size))
        except (DecodeError, LookupError):
            raise OSError("its record has changed") from None


def _of_folder(folder: str) -> Iterator[Listed]:
    if not os.path.isdir(folder):
        raise InputError(
            f"--images does not exist: {folder}. Give a folder of images or records, or a CSV file."
        )
    if is_ours(folder):
        raise InputError(f"{folder} is an index or a run. Give the folder of the images that it was made of.")
    unread = []

    def unreadable(inside, error):
        if not inside:
            raise InputError(f"Cannot read the folder {folder} ({error.strerror}).") from None
        path = os.path.join(folder, inside)
        read = functools.partial(_fail, error)
        unread.append(_listed(f"{inside}/", path, "", {})._replace(read=read, is_folder=True))

    walk = Walk(folder, unreadable)
    for inside in walk.images():
        label = os.path.basename(os.path.dirname(inside))
        yield _listed(inside, os.path.join(folder, inside), label, {})
    yield from unread
    for line in walk.left_out():
        print(line, flush=True)


def _fail(error):
    raise error


def _of_table(path: str) -> Iterator[Listed]:
    folder = os.path.dirname(os.path.abspath(path))
    for table in read_images(path, OWN):
        _check_kept(path, table)
        for row in table.to_pylist():
            place = row.pop("path")
            full = os.path.normpath(os.path.join(folder, place))
            label = row.pop("label", "")
            yield _listed(row.pop("id", place), full, "" if label == str(UNKNOWN) else label, row)


def _check_kept(path, table):
    """Raises InputError if an index cannot keep a column."""
    for field in table.schema:
        try:
            pa.array(table[field.name].to_pylist())
        except (pa.ArrowException, OverflowError):
            raise InputError(
                f"{path}: the column `{field.name}`, of type {field.type}, cannot be kept. Make it text, or"
                " leave it out."
            ) from None


def _listed(image_id, path, label, others):
    """Returns a listed image file, with its size and time of change."""
    size, modified = -1, 0
    with contextlib.suppress(OSError):
        status = os.stat(path)
        size, modified = status.st_size, status.st_mtime_ns
    texts = [files.text_of(text) for text in (image_id, os.path.abspath(path), label)]
    # Nobody sees a blank at the end of a name, or that a Mac writes é of a folder's name as two characters.
    texts[2] = labels.normalized(texts[2])
    return Listed(*texts, others, functools.partial(_read, path), size, modified)


def _read(path):
    with files.open_regular(path) as file:
        return file.read()
