"""The index of a set of records: position and class of each record. It is stored beside the shards.

A stored index is a folder: one .npy file for each column, and `index.json` with the version of this format,
the shards and their sizes, and the CRC32C checksums of the columns' files.
"""

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.sources.image import ROLES

COLUMN_TYPES = {
    "shard": np.int32,
    "offset": np.int64,
    "length": np.int64,
    "label": np.int64,
    "category": np.int64,
    "role": np.int8,
    "group": np.int64,
    "has_box": np.bool_,
    "id": np.bytes_,
    "checksum": np.uint32,
}
COLUMNS = tuple(COLUMN_TYPES)
# Maximum length of an id, and of a class given as a word. In an array each entry takes as much room as the
# longest.
MAX_NAME_BYTES = 1024
# Increase it when the format of a stored index changes.
VERSION = 1
HEADER = "index.json"
_BYTES_AT_A_TIME = 2**20
_RECORDS_AT_A_TIME = 2**18


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """The index: one entry for each record, in the order of shards and of records within a shard.

    Attributes:
        shards: paths of the shard files.
        size: `[shards]` int64, bytes of each shard.
        shard: `[records]` int32, number of the record's shard.
        offset: `[records]` int64, first byte of the record's data in its shard.
        length: `[records]` int64, bytes of data.
        label: `[records]` int64, class; -1 if unknown.
        category: `[records]` int64, coarser class; -1 if the record has none.
        role: `[records]` int8, position in `sources.image.ROLES`.
        group: `[records]` int64, instance that several records show; -1 if the record is an instance alone.
        has_box: `[records]` bool, whether the record has a bounding box.
        id: `[records]` bytes, the image's id.
        checksum: `[records]` uint32, masked CRC32C of the record's data.
    """

    shards: tuple[str, ...]
    size: np.ndarray
    shard: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    label: np.ndarray
    category: np.ndarray
    role: np.ndarray
    group: np.ndarray
    has_box: np.ndarray
    id: np.ndarray
    checksum: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if the records have none."""
        return int((np.unique(self.label) != UNKNOWN).sum())

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays that have one entry per record, by name."""
        return {name: getattr(self, name) for name in COLUMNS}

    def describe(self, number: int) -> str:
        """A description of record `number` for messages: shard, offset and image id."""
        return (
            f"record {number} of {self.shards[self.shard[number]]} at byte {self.offset[number]}"
            f" (image id {self.id[number].decode(errors='replace')!r})"
        )

    def fingerprint(self) -> str:
        """A hash of the content of the index; it does not depend on the folder of the shards."""
        digest = hashlib.sha256(" ".join(map(os.path.basename, self.shards)).encode())
        for name, column in self.columns().items():
            if name != "has_box":  # The checksums imply it.
                digest.update(np.ascontiguousarray(column))
        return digest.hexdigest()

    def save(self, path: str) -> None:
        """Writes the index, a folder, whole or not at all. Paths of local shards are relative to that."""
        parent = os.path.dirname(os.path.abspath(path))
        shards = [s if files.is_remote(s) else os.path.relpath(s, parent) for s in self.shards]
        with files.atomic_folder(path) as folder:
            checksums = {}
            for name, column in self.columns().items():
                file = _column_path(folder, name)
                np.save(file, np.asarray(column, COLUMN_TYPES[name]), allow_pickle=False)
                checksums[name] = _checksum(file)
            header = {"version": VERSION, "shards": shards, "sizes": self.size.tolist(), "crc32c": checksums}
            files.write_json(os.path.join(folder, HEADER), header)


def check_name(what: str, name: bytes, where: str) -> bytes:
    """Returns the name; raises InputError if it is longer than `MAX_NAME_BYTES`.

    Args:
        what: "id", or "class" for a class given as a word.
        name: its bytes.
        where: the image or record that has it.
    """
    if len(name) > MAX_NAME_BYTES:
        raise InputError(
            f"The {what} of {where} has {len(name):,} bytes; at most {MAX_NAME_BYTES:,} are allowed. It"
            f" begins with {name[:40].decode(errors='replace')!r}. Shorten it."
        )
    return name


def index_path(folder: str, split: str) -> str:
    """The path of a split's index, a folder."""
    return os.path.join(folder, f"{split}.index")


_HEADER = json_files.record(
    {
        "version": json_files.whole(),
        "shards": json_files.list_of(json_files.text()),
        "sizes": json_files.list_of(json_files.whole()),
        "crc32c": json_files.dict_of(json_files.whole()),
    },
    others=True,
)


def load_index(path: str, *, check_shards: bool = True) -> RecordIndex:
    """Opens an index that `RecordIndex.save` wrote. A local index is memory-mapped, not read into memory.

    Args:
        path: path of the index.
        check_shards: whether to check that the shards are there.

    Raises:
        InputError: the index is missing, damaged or of another version, or a shard is missing or has a
            different size than when it was indexed.
    """
    header = _load_header(path)
    try:
        _check_files(path, header)
        _check_records(_open(path, header))
        # Open again: pages of a memory-mapped file that were read stay in memory until it is closed.
        index = _open(path, header)
    # A damaged file can make parsers raise almost any exception.
    except Exception as error:
        raise _damaged(path, error) from None
    if check_shards:
        _check_shards(path, index)
    return index


def _load_header(path: str) -> dict[str, Any]:
    """Loads `index.json`; raises InputError if it is missing, damaged or of another version."""
    try:
        header = json.loads(_read(os.path.join(path, HEADER)))
        version = header["version"]
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise InputError(f"There is no record index at {path}.") from None
    except NotADirectoryError:
        version = 0  # The index was one file.
    except Exception as error:
        raise _damaged(path, error) from None
    if version != VERSION:
        raise InputError(
            f"The record index {path} was written by another version of tfrank. Delete it and run prepare"
            " again."
        )
    try:
        return _HEADER("", header)
    except ValueError as error:
        raise _damaged(path, error) from None


def _damaged(path, error):
    reason = " ".join(str(error).split())
    return InputError(f"The record index {path} is damaged ({reason}). Delete it to have it rebuilt.")


def _check_shards(path: str, index: RecordIndex) -> None:
    """Raises InputError unless every shard exists and has the size that the index gives."""
    for shard, indexed in zip(index.shards, index.size):
        try:
            now = tf.io.gfile.stat(shard).length
        except tf.errors.NotFoundError:
            raise InputError(
                f"The record index {path} lists the shard {shard}, which does not exist. Restore"
                " it, or prepare the records again."
            ) from None
        except (tf.errors.OpError, ValueError) as error:
            raise InputError(
                f"The record index {path} lists the shard {shard!r}, which cannot be read ({error})."
            ) from None
        if now != indexed:
            raise InputError(
                f"The shard {shard} has {now:,} bytes, but the record index {path} expects {indexed:,}. If"
                " the shard is right, delete the index to have it rebuilt."
            )


def _check_files(path: str, header: dict[str, Any]) -> None:
    """Raises ValueError unless the checksums of the columns' files are those of the header."""
    for name in COLUMNS:
        if _checksum(_column_path(path, name)) != header["crc32c"][name]:
            raise ValueError(f"checksum of {name}.npy")


def _check_records(index: RecordIndex) -> None:
    """Raises ValueError unless all columns fit, and each record lies in a shard and has a known role."""
    if index.size.shape != (len(index.shards),):
        raise ValueError(f"sizes of {index.size.shape} for {len(index.shards)} shards")
    for name, column in index.columns().items():
        expected = column.dtype.type if name == "id" else column.dtype
        if expected != COLUMN_TYPES[name] or column.shape != index.label.shape[:1]:
            raise ValueError(f"{name} is {column.dtype} {column.shape}")
    # In parts, to keep the use of memory low.
    for start in range(0, len(index), _RECORDS_AT_A_TIME):
        part = slice(start, start + _RECORDS_AT_A_TIME)
        shard, offset, length, role = (c[part] for c in (index.shard, index.offset, index.length, index.role))
        if shard.min() < 0 or shard.max() >= len(index.shards):
            raise ValueError("a record lies in a shard that is not listed")
        # Subtract: offset + length could overflow 64 bits.
        if offset.min() < 0 or length.min() < 0 or (length > index.size[shard] - offset).any():
            raise ValueError("a record lies outside of its shard")
        if role.min() < 0 or role.max() >= len(ROLES):
            raise ValueError("a record has an unknown role")


def _open(path: str, header: dict[str, Any]) -> RecordIndex:
    """Opens the columns without checking them; those of a local index are memory-mapped."""
    return RecordIndex(
        shards=tuple(_join(path, shard) for shard in header["shards"]),
        size=np.array(header["sizes"], np.int64),
        **{name: _open_column(_column_path(path, name)) for name in COLUMNS},
    )


def _open_column(path):
    if files.is_remote(path):
        return np.load(io.BytesIO(_read(path)), allow_pickle=False)
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _column_path(folder, name):
    return os.path.join(folder, f"{name}.npy")


def _checksum(path: str) -> int:
    """Computes the CRC32C checksum of a file, local or remote."""
    checksum = 0
    with _open_file(path) as file:
        while block := file.read(_BYTES_AT_A_TIME):
            checksum = google_crc32c.extend(checksum, block)
    return checksum


def _open_file(path):
    return tf.io.gfile.GFile(path, "rb") if files.is_remote(path) else open(path, "rb")


def _read(path):
    with _open_file(path) as file:
        return file.read()


def _join(path, shard):
    """The full path of a shard that the index at `path` names."""
    folder = os.path.dirname(path if files.is_remote(path) else os.path.abspath(path))
    return shard if files.is_remote(shard) else os.path.join(folder, shard)


def select(index: RecordIndex, rows: np.ndarray) -> RecordIndex:
    """The index of the records with these numbers, in this order."""
    return dataclasses.replace(index, **{name: column[rows] for name, column in index.columns().items()})


def concatenate(indexes: Sequence[RecordIndex]) -> RecordIndex:
    """Joins several indexes into one, in their order."""
    if len(indexes) == 1:
        return indexes[0]
    firsts = np.cumsum([0, *(len(index.shards) for index in indexes[:-1])])
    moved = [dataclasses.replace(i, shard=i.shard + np.int32(first)) for i, first in zip(indexes, firsts)]
    columns = {name: np.concatenate([getattr(index, name) for index in moved]) for name in COLUMNS}
    return RecordIndex(
        shards=tuple(shard for index in indexes for shard in index.shards),
        size=np.concatenate([index.size for index in indexes]),
        **columns,
    )
