"""Folders of embeddings: numbered parquet files, and blocks of their rows."""

import concurrent.futures
import functools
import hashlib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrank.common import json_files, parquet_files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.evaluation.array_checks import unit_rows
from tfrank.scale import storage
from tfrank.search import labels
from tfrank.search.index_folder import MAPPED, MODEL_KEY, PARTS, matrix

PATTERN = "embeddings-*.parquet"
# Lists of the images of each file, which `embed` removes when it has ended.
LISTS = ".lists"
# Files whose number of rows is asked for at the same time.
THREADS = 32
# As in records: the same name, however it is written.
_NFC = functools.partial(unicodedata.normalize, "NFC")
AGAIN = "Embed the images again."


class Part(NamedTuple):
    """A piece of a file of embeddings.

    Attributes:
        path: path of the file.
        start: its first row in the file.
        rows: number of its rows.
        first: number of its first row among the rows of all files.
        dim: dimensions of the embeddings.
        model: fingerprint of the model that made them; "" if the file does not say it.
        said: ids of its images that people gave labels to in an index, with these.
        mapped: number of its images in an index whose embeddings a map has made of an older model's.
    """

    path: str
    start: int
    rows: int
    first: int
    dim: int
    model: str = ""
    said: tuple[tuple[str, str], ...] = ()
    mapped: int = 0


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


def parts_of(folder: str) -> list[Part]:
    """Returns the files of a folder of embeddings as parts, in the order of their names.

    Args:
        folder: a local or remote folder with files `embeddings-*.parquet`, which have the columns id, label
            and embedding. In that of a search index, labels are as people corrected them, and embeddings may
            be mapped from an older model's, which is printed.

    Raises:
        InputError: there is no such file, a file is damaged or still missing, or files have different
            dimensions or models.
    """
    if storage.names(storage.join(folder, LISTS), "*"):
        raise InputError(
            f"{folder} is not whole: tfrank scale embed has not ended there. Run the same command again."
        )
    names = _names(folder)
    if not names:
        raise InputError(
            f"{folder} has no files {PATTERN}. `tfrank scale embed` and `tfrank index` make them."
        )
    paths = [storage.join(folder, name) for name in names]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        shapes = list(pool.map(_shape, paths))
    parts, first, said = [], 0, _said(folder)
    for path, (rows, dim, model, mapped) in zip(paths, shapes):
        if dim != shapes[0][1]:
            raise InputError(
                f"{path} has embeddings of {dim} dimensions, and {paths[0]} of {shapes[0][1]}. Embed all with"
                " the same model."
            )
        if rows:
            parts.append(_with_labels(Part(path, 0, rows, first, dim, model, mapped=mapped), said))
        first += rows
    if not parts:
        raise InputError(f"The files of embeddings in {folder} have no rows.")
    for part in parts:
        check_same_model(part.path, part.model, parts[0].path, parts[0].model)
    if note := note_on_mapped(parts):
        print(f"Note: {folder}: {note}", flush=True)
    return parts


def note_on_mapped(parts: Sequence[Part]) -> str:
    """Says how many embeddings are no model's own; "" if all are."""
    if not (mapped := sum(part.mapped for part in parts)):
        return ""
    return (
        f"A map has made the embeddings of {mapped:,} of {sum(part.rows for part in parts):,} images from an"
        " older model's. `tfrank index upgrade` embeds these images by the new model."
    )


def check_queries(name: str, model: str, gallery: str, of_gallery: str, *, two_models: bool) -> None:
    """Raises InputError if the models of queries and gallery differ, and it was not said that they may."""
    if not two_models:
        unless = ", unless one was trained to search the embeddings of the other (--two_models)"
        check_same_model(name, model, gallery, of_gallery, unless=unless)


def check_same_model(name: str, model: str, other: str, of_other: str, *, unless: str = "") -> None:
    """Raises InputError if two files or folders say that different models made their embeddings."""
    if model and of_other and model != of_other:
        raise InputError(
            f"{name} is by the model {model}, and {other} by {of_other}. Similarities between embeddings of"
            f" two models mean nothing{unless}. Embed all with the same model."
        )


def _names(folder):
    """The names of the files of embeddings; of a search index those of its current version."""
    current = storage.join(folder, "CURRENT")
    if not storage.exists(current):
        return storage.names(folder, PATTERN)
    number = storage.read(current).decode(errors="replace").strip()
    if not number.isdecimal():
        raise InputError(f"{current} is damaged (it is no number). {AGAIN}")
    path = storage.join(folder, "versions", f"{number}.json")
    version = json_files.record({"parts": PARTS}, others=True)
    return json_files.parse(storage.read(path), version, path, AGAIN)["parts"]


def _said(folder: str) -> dict[str, str]:
    """Returns the labels that people gave to images of a search index, by id; other folders have none."""
    path = storage.join(folder, labels.LABELS)
    if not (storage.exists(storage.join(folder, "CURRENT")) and storage.exists(path)):
        return {}
    return labels.parsed(storage.read(path), path)


def _with_labels(part: Part, said: Mapping[str, str]) -> Part:
    """Returns the part with the labels that people gave to its images."""
    ids = table_of(part, ["id"])["id"].to_pylist() if said else []
    return part._replace(said=tuple((key, said[key]) for key in ids if key in said))


def blocks_of(parts: Sequence[Part], most_rows: int) -> list[Block]:
    """Groups parts into blocks of at most `most_rows` rows; larger parts are cut."""
    blocks: list[list[Part]] = []
    for part in (piece for whole in parts for piece in _pieces(whole, most_rows)):
        if not blocks or sum(one.rows for one in blocks[-1]) + part.rows > most_rows:
            blocks.append([])
        blocks[-1].append(part)
    return [tuple(block) for block in blocks]


def _pieces(part: Part, most_rows: int) -> Iterator[Part]:
    """Yields pieces of a part, of at most `most_rows` rows."""
    for start in range(0, part.rows, most_rows):
        rows = min(most_rows, part.rows - start)
        yield part._replace(start=part.start + start, rows=rows, first=part.first + start)


def _shape(path):
    """Returns the number of rows of a file, their dimension, the model that made them, and how many a map."""
    with storage.open_file(path) as opened:
        schema, rows = parquet_files.schema(opened, path, AGAIN)
        mapped = 0
        if MAPPED in schema.names:
            mapped = rows - parquet_files.read(opened, path, AGAIN, [MAPPED])[MAPPED].null_count
    if missing := {"id", "label", "embedding"} - set(schema.names):
        raise InputError(f"{path} is no file of embeddings: it has no column {min(missing)}.")
    kind = schema.field("embedding").type
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
        raise InputError(f"{path}: the column embedding is {kind}, and no list of numbers of a fixed size.")
    model = (schema.metadata or {}).get(MODEL_KEY, b"").decode(errors="replace")
    return rows, kind.list_size, model, mapped


def table_of(part: Part, columns: list[str] | None = None) -> pa.Table:
    """Reads the rows of a part. Labels are read together with the ids.

    Raises:
        InputError: the file is missing or damaged.
    """
    with storage.open_file(part.path) as file:
        table = parquet_files.read(file, part.path, AGAIN, columns).slice(part.start, part.rows)
    if not part.said or "label" not in table.column_names:
        return table
    said, rows = dict(part.said), zip(table["id"].to_pylist(), table["label"].to_pylist())
    now = pa.array([said.get(key, label) for key, label in rows], pa.string())
    return table.set_column(table.column_names.index("label"), "label", now)


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
    """Returns the labels of a table as numbers, see `Rows`; -1 for images without a class, "" or "-1".

    >>> robin, nothing, again = labels_of(pa.table({"label": ["robin", "", "robin"]})).tolist()
    >>> robin == again, nothing
    (True, -1)
    """
    return _numbers(table["label"], lambda name: UNKNOWN if name in ("", str(UNKNOWN)) else _hash(_NFC(name)))


def hashes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Returns 63 bits of the hash of each text of a column; -1 for missing texts."""
    return _numbers(column, _hash)


def _numbers(column: pa.ChunkedArray, number: Callable[[str], int]) -> np.ndarray:
    """Returns the number of each text of a column; -1 for missing texts."""
    try:
        column = column.cast(pa.string())  # Columns of numbers count as well.
    except pa.ArrowException:
        raise InputError(f"A column of ids or labels is of type {column.type}. Make it text.") from None
    coded = column.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    texts = coded.dictionary.to_pylist()
    values = np.array([*map(number, texts), UNKNOWN])
    return values[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def _hash(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
