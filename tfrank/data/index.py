"""The index of a set of records: where each one is, and of which class. Kept beside the shards."""

import dataclasses
import hashlib
import os
import zipfile

import numpy as np

from tfrank import files
from tfrank.checks import InputError


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """One entry for each record, in the order of shards and of records in them.

    Attributes:
        shards: paths of the shard files.
        shard: `[records]` int32, number of the record's shard.
        offset: `[records]` int64, first byte of the record's data in its shard.
        length: `[records]` int64, bytes of data.
        label: `[records]` int64, class.
        category: `[records]` int64, coarser class, -1 where the records have none.
        id: `[records]` bytes, the image's id.
        checksum: `[records]` uint32, masked CRC32C of the record's data.
    """

    shards: tuple[str, ...]
    shard: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    label: np.ndarray
    category: np.ndarray
    id: np.ndarray
    checksum: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    @property
    def num_classes(self) -> int:
        return len(np.unique(self.label))

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays by name: everything but `shards`."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "shards"]
        return {name: getattr(self, name) for name in names}

    def describe(self, number: int) -> str:
        """What to call record `number` in a message: shard, offset and image id."""
        return (
            f"record {number} of {self.shards[self.shard[number]]} at byte {self.offset[number]}"
            f" (image id {self.id[number].decode(errors='replace')!r})"
        )

    def fingerprint(self) -> str:
        """A hash of the content of the index; the folder the shards stand in does not count."""
        digest = hashlib.sha256(" ".join(map(os.path.basename, self.shards)).encode())
        for column in self.columns().values():
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def save(self, path: str) -> None:
        """Writes the index, whole or not at all. Shards are named relative to it."""
        folder = os.path.dirname(os.path.abspath(path))
        shards = np.array([os.path.relpath(shard, folder) for shard in self.shards])
        with files.atomic_write(path) as file:
            np.savez(file, shards=shards, **self.columns())


def load_index(path: str) -> RecordIndex:
    """Reads an index that `RecordIndex.save` wrote; InputError where it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as columns:
            values = {field.name: columns[field.name] for field in dataclasses.fields(RecordIndex)}
    except FileNotFoundError:
        raise InputError(f"No record index at {path}.") from None
    except (ValueError, KeyError, EOFError, OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"The record index {path} is damaged ({error}). Delete it to have it rebuilt."
        ) from None
    folder = os.path.dirname(os.path.abspath(path))
    shards = tuple(os.path.join(folder, shard) for shard in values.pop("shards"))
    for shard in shards:
        if not os.path.exists(shard):
            raise InputError(f"The record index {path} names the shard {shard}, which does not exist.")
    return RecordIndex(shards=shards, **values)


def select_records(index: RecordIndex, numbers: np.ndarray) -> RecordIndex:
    """These records alone, in the order of `numbers`."""
    return dataclasses.replace(index, **{name: column[numbers] for name, column in index.columns().items()})
