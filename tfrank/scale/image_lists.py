"""The images to embed: lists in CSV or parquet on any store, or records; cut into numbered pieces."""

import csv
import io
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.index import RecordIndex
from tfrank.data.prepare.image_files import BadImage
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import FOOTER, class_text, encoded_image, verified_data
from tfrank.data.sources.tables import is_table, read_images
from tfrank.scale import storage
from tfrank.scale.parts import hashes_of
from tfrank.search.images import OWN

# Columns of a piece beside those of the list: where a record stands in its shard; null for an image file.
PLACE = {"offset": pa.int64(), "length": pa.int64()}


def pieces(source: str, rows: int) -> Iterator[pa.Table]:
    """Yields the images of a source, at most `rows` at a time, in order.

    Args:
        source: a CSV or parquet file with the column `path`, relative to the file, and optionally `id`,
            `label` and others; or a folder of records, of which all splits are taken.
        rows: most rows of a piece.

    Returns:
        Tables with the columns id, path and label, as text; offset and length for records; and the others.

    Raises:
        InputError: the source cannot be read, has no column `path`, or an id occurs twice.
    """
    tables = _of_list(source, rows) if is_table(source) else _of_records(source, rows)
    seen = []
    for table in tables:
        seen.append(hashes_of(table["id"]))
        yield table
    if not seen:
        raise InputError(f"{source} has no images.")
    ids = np.concatenate(seen)
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < len(ids):
        row = int(np.argmax(ids == unique[counts > 1][0]))
        raise InputError(f"{source} has the id of its image {row + 1:,} twice. Make the ids unique.")


def _of_list(source: str, rows: int) -> Iterator[pa.Table]:
    for table in read_images(source, {*OWN, *PLACE}, rows=rows, opened=storage.open_file):
        yield _listed(table, source)


def _listed(table: pa.Table, source: str) -> pa.Table:
    """Returns the table of a piece from rows of a list."""
    names = table.column_names
    folder = source.rsplit("/", 1)[0] if files.is_remote(source) else os.path.dirname(os.path.abspath(source))
    paths = [storage.join(folder, name) for name in table["path"].to_pylist()]
    columns = {"id": table["id" if "id" in names else "path"], "path": pa.array(paths)}
    columns["label"] = table["label"] if "label" in names else pa.array([""] * len(table))
    columns |= {name: pa.nulls(len(table), kind) for name, kind in PLACE.items()}
    # So that the list changes when a local image does. Asking a store would take a request an image.
    columns["modified"] = pa.array([0 if files.is_remote(path) else _modified(path) for path in paths])
    return pa.table({**columns, **{name: table[name] for name in names if name not in columns}})


def _of_records(folder: str, rows: int) -> Iterator[pa.Table]:
    summary = load_summary(folder)
    if summary is None:
        raise InputError(
            f"{folder} is neither a list of images nor a folder of records. Lists end in .csv, .tsv or"
            " .parquet."
        )
    for split in summary["splits"]:
        index = open_split(folder, split)
        for start in range(0, len(index), rows):
            yield _of_index(index, split, slice(start, start + rows))


def _of_index(index: RecordIndex, split: str, rows: slice) -> pa.Table:
    """Returns the table of a piece from rows of an index; the labels stand in the records."""
    local = [shard if files.is_remote(shard) else os.path.abspath(shard) for shard in index.shards]
    shards = np.array(list(map(files.text_of, local)))[index.shard[rows]]
    columns = {
        "id": pa.array([files.text_of(os.fsdecode(name)) for name in index.id[rows]]),
        "path": pa.array(shards),
        "label": pa.array([""] * len(shards)),
        "offset": pa.array(index.offset[rows]),
        "length": pa.array(index.length[rows]),
        # So that the list changes when a record does, which holds the label too.
        "modified": pa.array(index.checksum[rows].astype(np.int64)),
        "split": pa.array([split] * len(shards)),
    }
    return pa.table(columns)


class Image(NamedTuple):
    """An image of a piece.

    Attributes:
        encoded: the bytes of its file.
        label: its class in words; "" if unknown.
        size: bytes of the file or record.
        modified: when a local file was changed last, in nanoseconds since 1970; of a record the checksum; 0
            for a remote file.
    """

    encoded: bytes
    label: str
    size: int
    modified: int


def read_image(row: dict) -> Image:
    """Reads the image of a row of a piece.

    Raises:
        BadImage: the record is damaged.
        Missing: there is no such file.
        InputError: the store cannot be reached.
    """
    if row["offset"] is None:
        encoded = storage.read(row["path"])
        return Image(encoded, row["label"], len(encoded), row["modified"])
    with storage.open_file(files.path_of(row["path"])) as file:
        file.seek(row["offset"])
        block = file.read(row["length"] + FOOTER.size)
    try:
        data = verified_data(block, row["length"], "the record")
    except InputError as error:
        raise BadImage(str(error)) from None
    return Image(encoded_image(data), class_text(data), len(data), FOOTER.unpack(block[len(data) :])[0])


def _modified(path):
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # Reading it will say why.


def csv_of(rows: list[tuple[str, str]]) -> bytes:
    """Returns the ids and reasons of skipped images as a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(itertools.chain([("id", "reason")], rows))
    return text.getvalue().encode()
