"""The index of a set of records: position and class of each record. It is stored beside the shards."""

import dataclasses
import hashlib
import io
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.sources.image import ROLES, UNKNOWN

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
MOST_NAME_BYTES = 1024
# The fixed part of a zip member's header. It ends with the lengths of the name and extra field after it.
_ZIP_HEADER = struct.Struct("<26xHH")


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
            if name != "has_box":  # The checksums imply it, and indexes of earlier versions lack it.
                digest.update(np.ascontiguousarray(column))
        return digest.hexdigest()

    def save(self, path: str) -> None:
        """Writes the index, whole or not at all. Paths of local shards are relative to its folder."""
        folder = os.path.dirname(os.path.abspath(path))
        shards = [s if files.is_remote(s) else os.path.relpath(s, folder) for s in self.shards]
        with files.atomic_write(path) as file:
            np.savez(file, shards=np.array(shards), size=self.size, **self.columns())


def check_name(what: str, name: bytes, where: str) -> bytes:
    """Returns the name; raises InputError if it is longer than `MOST_NAME_BYTES`.

    Args:
        what: "id", or "class" for a class given as a word.
        name: its bytes.
        where: the image or record that has it.
    """
    if len(name) > MOST_NAME_BYTES:
        raise InputError(
            f"The {what} of {where} has {len(name):,} bytes, and may have {MOST_NAME_BYTES:,}. It begins"
            f" {name[:40].decode(errors='replace')!r}. Give it a shorter one."
        )
    return name


def index_path(folder: str, split: str) -> str:
    """The path of a split's index."""
    return os.path.join(folder, f"{split}.index.npz")


def load_index(path: str) -> RecordIndex:
    """Opens an index that `RecordIndex.save` wrote. A local index is memory-mapped, not read into memory.

    Raises:
        InputError: the index is missing or damaged, or a shard is missing or has a different size than when
            it was indexed.
    """
    try:
        values = dict(_mapped_arrays(path) if not files.is_remote(path) else _downloaded_arrays(path))
        shards, size = values.pop("shards"), values.pop("size")
        index = RecordIndex(
            shards=tuple(_join(path, str(shard)) for shard in shards),
            size=size,
            **{name: values[name] for name in COLUMNS},
        )
        for name, column in index.columns().items():
            if (
                column.dtype.kind != np.dtype(COLUMN_TYPES[name]).kind
                or column.shape != index.label.shape[:1]
            ):
                raise ValueError(f"{name} is {column.dtype} {column.shape}")
        _check_places(index)
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise InputError(f"No record index at {path}.") from None
    # A damaged file can make parsers raise almost any exception.
    except Exception as error:
        raise InputError(
            f"The record index {path} is damaged, or of an earlier version ({error}). Delete it to have it"
            " rebuilt."
        ) from None
    for shard, indexed in zip(index.shards, index.size):
        try:
            now = tf.io.gfile.stat(shard).length
        except tf.errors.NotFoundError:
            raise InputError(
                f"The record index {path} names the shard {shard}, which does not exist. Bring it"
                " back, or prepare the records anew."
            ) from None
        except (tf.errors.OpError, ValueError) as error:
            raise InputError(
                f"The record index {path} names the shard {shard!r}, which cannot be read ({error})."
            ) from None
        if now != indexed:
            raise InputError(
                f"The shard {shard} has {now:,} bytes, and had {indexed:,} when the record index {path} was"
                " made. If the shard is right, delete the index to have it rebuilt."
            )
    return index


def _check_places(index: RecordIndex) -> None:
    """Raises ValueError unless each record lies within one of the shards and has a known role."""
    if index.size.shape != (len(index.shards),) or index.size.dtype.kind != "i":
        raise ValueError(f"size is {index.size.dtype} {index.size.shape} for {len(index.shards)} shards")
    if not len(index):
        return
    if index.shard.min() < 0 or index.shard.max() >= len(index.shards):
        raise ValueError("a record lies in a shard that is not named")
    # Subtract: offset + length could overflow 64 bits.
    room = index.size[index.shard] - index.offset
    if index.offset.min() < 0 or index.length.min() < 0 or (index.length > room).any():
        raise ValueError("a record lies outside of its shard")
    if index.role.min() < 0 or index.role.max() >= len(ROLES):
        raise ValueError("a record's role is none")


def _join(path, shard):
    """The full path of a shard that the index at `path` names."""
    folder = os.path.dirname(path if files.is_remote(path) else os.path.abspath(path))
    return shard if files.is_remote(shard) else os.path.join(folder, shard)


def _downloaded_arrays(path: str) -> Iterator[tuple[str, np.ndarray]]:
    with (
        tf.io.gfile.GFile(path, "rb") as file,
        np.load(io.BytesIO(file.read()), allow_pickle=False) as arrays,
    ):
        yield from arrays.items()


def _mapped_arrays(path: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of an uncompressed .npz file, memory-mapped at their position in it."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        if damaged := archive.testzip():
            raise ValueError(f"checksum of {damaged}")
        for member in archive.infolist():
            file.seek(member.header_offset)
            file.seek(sum(_ZIP_HEADER.unpack(file.read(_ZIP_HEADER.size))), os.SEEK_CUR)
            version = np.lib.format.read_magic(file)
            read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}")
            shape, _, dtype = read_header(file)
            if dtype.hasobject or member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename} is of another kind")
            empty = 0 in shape
            array = np.empty(shape, dtype) if empty else np.memmap(path, dtype, "r", file.tell(), shape)
            yield member.filename.removesuffix(".npy"), np.asarray(array)


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
