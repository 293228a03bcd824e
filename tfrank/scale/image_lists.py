"""The images to embed: lists in CSV or parquet on any store, or records; cut into numbered pieces."""

import csv
import io
import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.index import RecordIndex
from tfrank.data.prepare.image_files import BadImage
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import FOOTER, class_text, encoded_image, verified_data
from tfrank.data.sources.csv_manifest import DELIMITERS
from tfrank.scale import storage
from tfrank.scale.parts import hashes_of
from tfrank.search.store import COLUMNS

# Columns of a piece beside those of the list: where a record stands in its shard; null for an image file.
PLACE = {"offset": pa.int64(), "length": pa.int64()}
# Columns that a list may not have.
RESERVED = {*COLUMNS, *PLACE, "embedding"} - {"id", "path", "label"}
# The types of further columns of a CSV file follow from so many bytes.
BLOCK_BYTES = 2**26


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
    tables = _of_list(source, rows) if source.endswith((".csv", ".parquet")) else _of_records(source, rows)
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
    with storage.open_file(source) as file:
        try:
            if source.endswith(".parquet"):
                batches = pq.ParquetFile(file).iter_batches(batch_size=rows)
            else:
                batches = _csv_batches(file)
            yield from (_listed(table, source) for table in _rebatched(batches, rows))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"Cannot read {source} ({str(error).splitlines()[0]}).") from None


def _csv_batches(file):
    """The rows of a CSV file. Numbers in the columns of names stay the text that they are: 007."""
    header = file.readline().decode("utf-8-sig", errors="replace")
    file.seek(0)
    delimiter = max(DELIMITERS, key=header.count)
    return pyarrow.csv.open_csv(
        file,
        pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(("path", "id", "label"), pa.string())),
    )


def _rebatched(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yields tables of `rows` rows; the last may be shorter."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        while sum(map(len, waiting)) >= rows:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, rows)
            waiting = table.slice(rows).to_batches()
    if sum(map(len, waiting)):
        yield pa.Table.from_batches(waiting)


def _listed(table: pa.Table, source: str) -> pa.Table:
    """Returns the table of a piece from rows of a list."""
    names = table.column_names
    if repeated := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{source} has the column `{min(repeated)}` twice.")
    if "path" not in names:
        raise InputError(f"{source} has no column `path`. Its columns are: {', '.join(names)}.")
    if own := RESERVED & set(names):
        raise InputError(
            f"{source} has the column `{min(own)}`, which is made here. Rename it or leave it out."
        )
    folder = source.rsplit("/", 1)[0] if files.is_remote(source) else os.path.dirname(os.path.abspath(source))
    given = table["path"].cast(pa.string())
    if given.null_count:
        raise InputError(f"{source} has {given.null_count:,} rows without a path.")
    paths = [storage.join(folder, name) for name in given.to_pylist()]
    columns = {"id": table["id"].cast(pa.string()) if "id" in names else given, "path": pa.array(paths)}
    columns["label"] = pa.array([""] * len(table))
    if "label" in names:
        columns["label"] = table["label"].cast(pa.string()).fill_null("")
    columns |= {name: pa.nulls(len(table), kind) for name, kind in PLACE.items()}
    # So that the list changes when a local image does. Asking a store would take a request an image.
    columns["modified"] = pa.array([0 if files.is_remote(path) else _modified(path) for path in paths])
    return pa.table({**columns, **{name: table[name] for name in names if name not in columns}})


def _of_records(folder: str, rows: int) -> Iterator[pa.Table]:
    summary = load_summary(folder)
    if summary is None:
        raise InputError(
            f"{folder} is neither a list of images nor a folder of records. Lists end in .csv or .parquet."
        )
    for split in summary["splits"]:
        index = open_split(folder, split)
        for start in range(0, len(index), rows):
            yield _of_index(index, split, slice(start, start + rows))


def _of_index(index: RecordIndex, split: str, rows: slice) -> pa.Table:
    """Returns the table of a piece from rows of an index; the labels stand in the records."""
    shards = np.array(index.shards)[index.shard[rows]]
    columns = {
        "id": pa.array([name.decode() for name in index.id[rows]]),
        "path": pa.array(shards),
        "label": pa.array([""] * len(shards)),
        "offset": pa.array(index.offset[rows]),
        "length": pa.array(index.length[rows]),
        "modified": pa.nulls(len(shards), pa.int64()),
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
    with storage.open_file(row["path"]) as file:
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
