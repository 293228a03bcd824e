"""Embeddings that another model has computed, of images, texts or sounds, with a label each.

- An .npz file has the arrays `embeddings`, `[rows, dim]` numbers, and `labels`, `[rows]` words or integers.
- A parquet file (which needs pyarrow) has the columns `embedding`, a list of numbers in each row, and
  `label`. A folder of such files is read as one, for example an index of images that `tfrank index` has
  written; its photos have the labels that people gave them since.

Further arrays or columns may be `ids`, `split`, `role` and `category`, with the meaning of the columns of a
CSV manifest (`sources.csv_manifest`). Names may be singular or plural in both. Without `ids` a row is named
by its number, from 0. Without `split` the classes are divided into train and test at random.
"""

import collections
import glob
import os
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.common.csv_text import csv_rows
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.sources.classes import divide
from tfrank.data.sources.image import ROLES, SourceImage
from tfrank.data.vectors import FORMAT, encode

COLUMNS = ("embedding", "label", "id", "split", "role", "category")
_NEEDED = COLUMNS[:2]
# Labels that mean that a row has no class.
_UNLABELLED = ("", str(UNKNOWN))
_ROWS = 8192


def read_embeddings(path: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """Yields the rows of a file or folder, in its order, as images of the format "float32".

    Rows without a label (empty, missing or -1) are left out. The labels are read first, then everything.

    Args:
        path: path of an .npz or parquet file, or of a folder of parquet files.
        test_share: share of the classes that go to "test", 0 to 1, if there is no split; at least one class
            goes to "train".
        seed: seed of that random split, at least 0.

    Raises:
        InputError: the file does not exist or is damaged, it has no embeddings or no labels, or they do not
            fit each other; or a role is unknown.
    """
    # Equal rows are counted: there are few of them, and may be millions of embeddings.
    rows = collections.Counter()
    for part in _parts(path, without=("embedding",)):
        rows.update(zip(part["label"], part["split"], part["category"]))
    if unlabelled := sum(rows.pop(row) for row in list(rows) if row[0] in _UNLABELLED):
        print(f"Note: {unlabelled:,} rows of {path} have no label and are left out.", flush=True)
    classes = divide(path, rows.elements(), test_share=test_share, seed=seed)
    row, dims = 0, set()
    for part in _parts(path):
        dims.add(part["embedding"].shape[1])
        if len(dims) > 1:
            raise InputError(f"{path} has embeddings of {' and '.join(map(str, sorted(dims)))} dimensions.")
        for vector, label, name, split, role, category in zip(*(part[column] for column in COLUMNS)):
            row += 1
            if label in _UNLABELLED:
                continue
            if role not in ROLES:
                raise InputError(f"{path}: row {row - 1:,} has the role {role!r}. Expected one of {ROLES}.")
            if role and not split:
                raise InputError(
                    f"{path}: row {row - 1:,} has the role {role!r} and no split. Give splits beside roles,"
                    " which hold of test rows alone."
                )
            yield SourceImage(
                path="",
                encoded=encode(vector),
                format=FORMAT,
                id=name or str(row - 1),
                role=role,
                **classes.fields(label, split, category),
            )


def _parts(path: str, without: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yields the columns of some rows at a time: `[rows, dim]` embeddings and lists of text."""
    try:
        read = _parts_of_npz if path.lower().endswith(".npz") else _parts_of_parquet
        for columns in read(path, without):
            yield _checked(columns, without)
    except FileNotFoundError:
        raise InputError(f"There is no file {path}. Give that of the embeddings, .npz or .parquet.") from None
    except files.NPZ_ERRORS as error:
        reason = checks.reason(error).rstrip(".")
        if "allow_pickle" in reason:
            reason = "an array holds Python objects; make text of it, np.array(labels, dtype=str)"
        raise InputError(
            f"{path} cannot be read: {reason}. It should be an .npz with embeddings, [rows, dim] numbers, and"
            " labels, [rows] words or integers; or parquet files with columns of the same names."
        ) from None


def _parts_of_npz(path, without):
    if not zipfile.is_zipfile(path) and os.path.exists(path):
        raise ValueError("it is no .npz, or is cut off")
    with np.load(path, allow_pickle=False) as arrays:
        names = columns_of(arrays.files)
        yield {column: arrays[name] for name, column in names.items() if column not in without}


def _parts_of_parquet(path, without):
    if not os.path.isdir(path) and not path.lower().endswith(".parquet"):
        raise ValueError("its name ends neither in .npz nor in .parquet")
    try:
        from tfrank.common import parquet_files  # Slow, and only needed here.
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install pyarrow") from None
    remedy, said = "Write it again.", _said(path)
    for name in _parquet_files(path):
        with open(name, "rb") as file:
            found = columns_of(parquet_files.schema(file, name, remedy)[0].names)
            names = {name: column for name, column in found.items() if column not in without}
            for batch in parquet_files.batches(file, name, remedy, _ROWS, list(names)):
                found = {column: _array(batch.column(name)) for name, column in names.items()}
                if said:
                    labels = [said.get(name, label) for name, label in zip(found["id"], found["label"])]
                    found["label"] = np.array(labels, object)
                yield found


def _said(path):
    """Returns the labels that people gave to photos of a search index, by id; see `search.labels`."""
    labels = os.path.join(path, "labels.csv")
    if not (os.path.exists(os.path.join(path, "CURRENT")) and os.path.exists(labels)):
        return {}
    with open(labels, "rb") as file:
        return {key: label for _, (key, label) in csv_rows(file.read(), labels, ("id", "label"))}


def columns_of(names: Iterable[str], known: Collection[str] = COLUMNS) -> dict[str, str]:
    """Returns the column of each name that is a known one; names may be in the plural.

    Raises:
        ValueError: two names are the same column.

    >>> columns_of(["embeddings", "id", "notes"])
    {'embeddings': 'embedding', 'id': 'id'}
    """
    columns = {name: _singular(name) for name in names}
    columns = {name: column for name, column in columns.items() if column in known}
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"it has two of a kind among {', '.join(sorted(columns))}")
    return columns


def _parquet_files(path):
    """Returns the parquet files of a folder, those of the current version alone if it is a search index."""
    if not os.path.isdir(path):
        return [path]
    current = os.path.join(path, "CURRENT")
    if os.path.exists(current):
        with open(current) as file:
            number = int(file.read(20))
        version = os.path.join("versions", f"{number}.json")
        check = json_files.record({"parts": json_files.list_of(json_files.file_name())}, others=True)
        found = json_files.read(version, check, "Make the index again.", below=path)
        return [os.path.join(path, name) for name in found["parts"]]
    if glob.glob(os.path.join(glob.escape(path), ".lists", "*")):
        raise ValueError("tfrank scale embed has not ended there; run the same command again")
    if not (paths := sorted(glob.glob(os.path.join(glob.escape(path), "*.parquet")))):
        raise ValueError("the folder has no .parquet file")
    return paths


def _array(column):
    """Returns a column of lists of equal length as `[rows, dim]`, any other as objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type) or pa.types.is_map(column.type):
        raise ValueError(f"a column is of type {column.type}, and not a list of numbers")
    if not pa.types.is_nested(column.type):
        return np.array(column.to_pylist(), object)
    lengths = pc.list_value_length(column).fill_null(0).unique().to_pylist()
    if len(lengths) > 1:
        sizes = " and ".join(map(str, sorted(lengths)))
        raise ValueError(f"rows have embeddings of {sizes} numbers; leave out rows without one")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _singular(name: str) -> str:
    return {"categories": "category"}.get(name, name.removesuffix("s"))


def _checked(columns: Mapping[str, np.ndarray], without: tuple[str, ...]) -> dict[str, Any]:
    """Returns all columns of a part, empty where there are none; raises ValueError if they do not fit."""
    if missing := set(_NEEDED) - columns.keys() - set(without):
        raise ValueError(f"it has no {' and no '.join(f'{name}s' for name in sorted(missing))}")
    rows = columns["label"].size
    found = {name: _texts(columns.get(name, np.full(rows, ""))) for name in COLUMNS[1:]}
    if "embedding" not in without:
        found["embedding"] = vectors = columns["embedding"]
        if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
            raise ValueError(f"embeddings are {vectors.dtype} of shape {list(vectors.shape)}")
    for name, column in found.items():
        if len(column) != rows:
            raise ValueError(f"there are {rows:,} labels, and {len(column):,} {name}s")
    return found


def _texts(column):
    return [_text(value) for value in column.reshape(-1).tolist()]


def _text(value):
    """The text of a value. Pandas makes floats of integers and missing values, and NaN of the latter."""
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
