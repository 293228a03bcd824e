"""Folders of embeddings: numbered parquet files, and blocks of their rows."""

import concurrent.futures
import hashlib
import io
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfrank.common.checks import InputError
from tfrank.evaluation.evaluate_arrays import unit_rows
from tfrank.evaluation.protocols import UNKNOWN
from tfrank.scale import storage
from tfrank.search.store import matrix

PATTERN = "embeddings-*.parquet"
# Files whose number of rows is asked for at the same time.
THREADS = 32


class Part(NamedTuple):
    """A piece of a file of embeddings.

    Attributes:
        path: path of the file.
        start: its first row in the file.
        rows: number of its rows.
        first: number of its first row among the rows of all files.
        dim: dimensions of the embeddings.
    """

    path: str
    start: int
    rows: int
    first: int
    dim: int


Block = tuple[Part, ...]


class Rows(NamedTuple):
    """The rows of a part.

    Attributes:
        number: `[rows]` int64, numbers among the rows of all files.
        label: `[rows]` int64, hash of the class; -1 if unknown.
        id: `[rows]` int64, hash of the id.
        embeddings: `[rows, dim]` float32, of unit norm.
    """

    number: np.ndarray
    label: np.ndarray
    id: np.ndarray
    embeddings: np.ndarray


def parts_of(folder: str, most_rows: int = 0) -> list[Part]:
    """Returns the parts of a folder of embeddings, in the order of their names.

    Args:
        folder: a local or remote folder with files `embeddings-*.parquet`, which have the columns id, label
            and embedding.
        most_rows: the most rows of a part; 0: each file is one part.

    Raises:
        InputError: there is no such file, a file is damaged, or files have different dimensions.
    """
    names = _names(folder)
    if not names:
        raise InputError(
            f"{folder} has no files {PATTERN}. `tfrank-scale embed` and `tfrank-index` make them."
        )
    paths = [storage.join(folder, name) for name in names]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        shapes = list(pool.map(_shape, paths))
    parts, first = [], 0
    for path, (rows, dim) in zip(paths, shapes):
        if dim != shapes[0][1]:
            raise InputError(
                f"{path} has embeddings of {dim} dimensions, and {paths[0]} of {shapes[0][1]}. Embed all with"
                " the same model."
            )
        for start in range(0, rows, most_rows or max(rows, 1)):
            count = min(most_rows or rows, rows - start)
            parts.append(Part(path, start, count, first + start, dim))
        first += rows
    if not parts:
        raise InputError(f"The files of embeddings in {folder} have no rows.")
    return parts


def _names(folder):
    """The names of the files of embeddings; of a search index those of its current version."""
    current = storage.join(folder, "CURRENT")
    if not storage.exists(current):
        return storage.names(folder, PATTERN)
    number = storage.read(current).decode().strip()
    return json.loads(storage.read(storage.join(folder, "versions", f"{number}.json")))["parts"]


def blocks_of(parts: Sequence[Part], most_rows: int) -> list[Block]:
    """Groups parts of at most `most_rows` rows into blocks of at most so many."""
    blocks: list[list[Part]] = []
    for part in parts:
        if not blocks or sum(one.rows for one in blocks[-1]) + part.rows > most_rows:
            blocks.append([])
        blocks[-1].append(part)
    return [tuple(block) for block in blocks]


def _shape(path):
    """Returns the number of rows of a file and their dimension."""
    with storage.open_file(path) as opened:
        try:
            file = pq.ParquetFile(opened)
            kind = file.schema_arrow.field("embedding").type
            dim = getattr(kind, "list_size", None)
            missing = {"id", "label"} - set(file.schema_arrow.names)
        except (pa.ArrowException, OSError, KeyError, AttributeError) as error:
            raise InputError(f"{path} is no file of embeddings ({str(error).splitlines()[0]}).") from None
        if missing:
            raise InputError(f"{path} has no column {min(missing)}.")
        if dim is None:
            raise InputError(f"{path}: the column embedding is {kind}, and no list of a fixed size.")
        return file.metadata.num_rows, dim


def table_of(part: Part, columns: list[str] | None = None) -> pa.Table:
    """Reads the rows of a part.

    Raises:
        InputError: the file is missing or damaged.
    """
    with storage.open_file(part.path) as file:
        try:
            table = pq.read_table(file, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{part.path} is damaged ({str(error).splitlines()[0]}).") from None
    return table.slice(part.start, part.rows)


def rows_of(part: Part) -> Rows:
    """Reads the rows of a part, as numbers.

    Raises:
        InputError: the file is missing or damaged, or an embedding is not finite.
    """
    table = table_of(part, ["id", "label", "embedding"])
    ids = np.array(table["id"].to_pylist())
    unit, _ = unit_rows(matrix(table), ids)
    numbers = np.arange(part.first, part.first + part.rows)
    return Rows(numbers, labels_of(table), hashes_of(table["id"]), unit)


def rows_of_block(block: Block) -> Rows:
    """Reads the rows of several parts."""
    return Rows(*map(np.concatenate, zip(*map(rows_of, block))))


def names_of_block(block: Block) -> pa.Table:
    """Reads the ids and labels of several parts, and not their embeddings."""
    return pa.concat_tables([table_of(part, ["id", "label"]) for part in block])


def labels_of(table: pa.Table) -> np.ndarray:
    """Returns the labels of a table as numbers, see `Rows`."""
    return hashes_of(table["label"], unknown="")


def serialized(table: pa.Table) -> bytes:
    """Returns a table as the bytes of a parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def hashes_of(column: pa.ChunkedArray, unknown: str | None = None) -> np.ndarray:
    """Returns 63 bits of the hash of each text of a column; -1 for missing texts and for `unknown`.

    >>> robin, nothing, again = hashes_of(pa.chunked_array([["robin", "", "robin"]]), unknown="").tolist()
    >>> robin == again, nothing
    (True, -1)
    """
    try:
        column = column.cast(pa.string())  # Columns of numbers count as well.
    except pa.ArrowException:
        raise InputError(f"A column of ids or labels is of type {column.type}. Make it text.") from None
    coded = column.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    texts = coded.dictionary.to_pylist()
    values = np.array([UNKNOWN if text == unknown else _hash(text) for text in texts] + [UNKNOWN])
    return values[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def _hash(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
