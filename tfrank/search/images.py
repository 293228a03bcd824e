"""The images that are put into an index: those of a folder, of the lines of a CSV file, or of records."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tfrank.common.checks import InputError
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import RecordReader, class_text, encoded_image
from tfrank.data.sources.folder import HEIC, SUFFIXES
from tfrank.search.store import COLUMNS

# Columns of a CSV file that the index fills in itself.
_OWN = set(COLUMNS) - {"id", "path", "label"} | {"embedding"}


class Listed(NamedTuple):
    """An image to put into an index.

    Attributes:
        id: unique text; by default the path relative to the folder, or to the CSV file.
        path: of the image file; for a record the shard and the record's first byte.
        label: its class; "" if unknown. In a folder, the name of the folder inside it that holds the image.
        others: further columns of a CSV file, by name; for a record its `split`.
        read: returns the bytes of the image file.
        size: number of bytes of the file or record; -1 if the file does not exist.
        modified: when the file was changed last, in nanoseconds since 1970; for a record its checksum.
    """

    id: str
    path: str
    label: str
    others: Mapping[str, Any]
    read: Callable[[], bytes]
    size: int
    modified: int


def listed_images(source: str) -> list[Listed]:
    """Lists the images of a folder, with all folders inside it, of a CSV file, or of records, in order.

    A CSV file has a column `path`, relative to the file, and may have `id`, `label` and any others, which
    become columns of the index. Hidden files and folders are left out. Of a folder of records, as `prepare`
    writes it, all splits are listed.

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
    if os.path.isfile(source):
        return _of_csv
    return _of_records if load_summary(source) else _of_folder


def _of_records(folder: str) -> Iterator[Listed]:
    for split in load_summary(folder)["splits"]:
        index = open_split(folder, split)
        reader = RecordReader(index)
        _, firsts, classes = np.unique(index.label, return_index=True, return_inverse=True)
        labels = [class_text(serialized) for serialized in reader.read(firsts)]
        for row, image_id in enumerate(index.id):
            path = f"{index.shards[index.shard[row]]}:{index.offset[row]}"
            size, checksum = int(index.length[row]), int(index.checksum[row])
            read = functools.partial(_read_record, reader, row)
            yield Listed(
                image_id.decode(), path, labels[classes[row]], {"split": split}, read, size, checksum
            )


def _read_record(reader, row):
    (serialized,) = reader.read([row])
    return encoded_image(serialized)


def _of_folder(folder: str) -> Iterator[Listed]:
    if not os.path.isdir(folder):
        raise InputError(
            f"--images does not exist: {folder}. Give a folder of images or records, or a CSV file."
        )
    heic = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(here, name)
            inside = os.path.relpath(path, folder)
            heic += name.lower().endswith(HEIC)
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                label = os.path.basename(os.path.dirname(inside))
                yield _listed(inside.replace(os.sep, "/"), path, label, {})
    if heic:
        print(f"{heic:,} HEIC files are left out. Convert them to JPEG.")


def _of_csv(path: str) -> Iterator[Listed]:
    try:
        # Numbers as ids and labels stay the text that they are: 007.
        texts = dict.fromkeys(("path", "id", "label"), pa.string())
        table = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=texts))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"Cannot read {path} ({str(error).splitlines()[0]}).") from None
    if "path" not in table.column_names:
        raise InputError(f"{path} has no column `path`. Its columns are: {', '.join(table.column_names)}.")
    if own := _OWN & set(table.column_names):
        raise InputError(
            f"{path} has the column `{min(own)}`, which the index fills in itself. Rename it or leave it out."
        )
    folder = os.path.dirname(os.path.abspath(path))
    for row in table.to_pylist():
        place, image_id = str(row.pop("path")), row.pop("id", None)
        label = row.pop("label", None)
        full = os.path.normpath(os.path.join(folder, place))
        text = place if image_id is None else str(image_id)
        yield _listed(text, full, "" if label is None else str(label), row)


def _listed(image_id, path, label, others):
    """Returns a listed image file, with its size and time of change."""
    size, modified = -1, 0
    with contextlib.suppress(OSError):
        status = os.stat(path)
        size, modified = status.st_size, status.st_mtime_ns
    return Listed(image_id, path, label, others, functools.partial(_read, path), size, modified)


def _read(path):
    with open(path, "rb") as file:
        return file.read()
