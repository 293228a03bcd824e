"""Indexes shards that were made elsewhere: scans all records once and saves the index."""

import dataclasses
import glob
import hashlib
import json
import os
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.common.progress import Progress
from tfrank.data.index import RecordIndex, check_name, concatenate, load_index
from tfrank.data.prepare.workers import Counts, run_tasks
from tfrank.data.records import (
    BOX_FEATURES,
    FOOTER,
    HEADER,
    index_of_rows,
    masked_crc,
    open_shard,
    verified_data,
)
from tfrank.data.sources.image import ROLES

_GZIP = b"\x1f\x8b"
# With less data, starting processes takes longer than it saves.
_MIN_MEGABYTES_FOR_WORKERS = 300


@dataclasses.dataclass(kw_only=True, slots=True)
class Features:
    """Names of the features of a record. Only `encoded` and `label` are required.

    Attributes:
        encoded: bytes of an image file.
        label: class, an integer in all records or a word in all records.
        id: a unique name of the image. If it is missing, `filename` is used; else shard and offset.
        filename: file name of the image.
        category: coarser class, an integer.
        text: class in words.
    """

    encoded: str = "image/encoded"
    label: str = "image/class/label"
    id: str = "image/id"
    filename: str = "image/filename"
    category: str = "image/category/label"
    text: str = "image/class/text"


# The names that most records have.
USUAL = Features()


def open_foreign_records(
    patterns: Sequence[str], folder: str, *, features: Features, cache: str, processes: int
) -> RecordIndex:
    """Returns the index of shards that were made elsewhere; scans them once and saves it beside them.

    Args:
        patterns: patterns of the shards' names, such as "train-*".
        folder: folder of the shards, local or remote (gs://bucket/folder).
        features: the names of their features.
        cache: folder for the index if the shards' folder is remote or cannot be written to.
        processes: number of worker processes.

    Raises:
        InputError: no shards match, one is damaged, or a record lacks a required feature.
    """
    files.check_reachable(folder)
    shards = sorted({shard for pattern in patterns for shard in _matching(folder, pattern)})
    shards = [shard for shard in shards if not shard.endswith((".index", ".tmp"))]
    if not shards:
        raise InputError(
            f"No file in {folder} matches {', '.join(patterns)}. Correct the patterns of the shards."
        )
    name = _index_name(patterns, features)
    writable = not files.is_remote(folder) and os.access(folder, os.W_OK)
    for place in (folder, cache):
        path = os.path.join(place, name)
        if not files.is_remote(path) and os.path.exists(path) and (index := _current(path, shards)):
            return index
    path = os.path.join(folder if writable else cache, name)
    index = scan(shards, features=features, processes=processes)
    index.save(path)
    print(f"The index of {len(index):,} records is stored in {path}")
    return load_index(path)


def _matching(folder, pattern):
    if files.is_remote(folder):
        return tf.io.gfile.glob(os.path.join(folder, pattern))
    return glob.glob(os.path.join(glob.escape(folder), pattern))


def _index_name(patterns, features):
    """Returns a file name for the index, unique to these patterns and features."""
    described = json.dumps([list(patterns), dataclasses.asdict(features)])
    readable = re.sub(r"\W+", "_", "_".join(patterns)).strip("_")[:80]
    return f"{readable}.{zlib.crc32(described.encode()):08x}.index"


def _current(path, shards):
    """Loads the index at a path; None if it does not match the shards as they are now."""
    try:
        index = load_index(path)
    except InputError:
        print(f"The record index {path} is damaged or does not fit the shards. It is built again.")
        return None
    made = os.stat(path).st_mtime_ns
    newer = [s for s in shards if tf.io.gfile.stat(s).mtime_nsec > made]
    same = list(map(os.path.abspath, index.shards)) == list(map(os.path.abspath, shards))
    if newer or not same:
        reason = f"older than {newer[0]}" if newer else "of other shards"
        print(f"The record index {path} is {reason}. It is built again.")
    return index if same and not newer else None


def scan(shards: Sequence[str], *, features: Features = USUAL, processes: int = 1) -> RecordIndex:
    """Indexes shards by reading and checking all their records.

    A label that is a word becomes 63 bits of its hash, so it is the same number in all parts of a data set.

    Raises:
        InputError: a shard is missing or damaged, a record lacks a required feature, or there are no records.
    """
    megabytes = sum(_size(shard) for shard in shards) / 1e6
    progress = Progress("MB", max(1, round(megabytes)), rate="MB")
    counts = Counts()
    found = dict(
        run_tasks(
            _scan_shard,
            [(shard, features) for shard in shards],
            counts=counts,
            processes=min(processes, len(shards)) if megabytes > _MIN_MEGABYTES_FOR_WORKERS else 1,
            watch=lambda: progress.show(round(counts.done / 1e6)),
        )
    )
    parts = [found[shard] for shard in shards]
    labels = np.concatenate([labels for labels, _ in parts if len(labels)] or [[]])
    if not len(labels):
        raise InputError(f"There are no records in {', '.join(shards)}.")
    if labels.dtype.kind != "i":
        if any(part.dtype.kind == "i" for part, _ in parts if len(part)):
            raise InputError(
                f"The feature {features.label} is a number in some shards and a word in others. Use one kind."
            )
        words, places = np.unique(labels, return_inverse=True)
        labels = np.array([_number_of(word) for word in words])[places]
    index = concatenate([index for _, index in parts])
    return dataclasses.replace(index, label=labels.astype(np.int64))


def _number_of(word):
    # Normalise: é may be written as one character or as two, but the class is the same.
    text = unicodedata.normalize("NFC", word.decode(errors="surrogateescape"))
    word = text.encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest()) >> 1


def _size(shard):
    with open_shard(shard):
        return tf.io.gfile.stat(shard).length


def _scan_shard(task: tuple[str, Features], counts: Counts) -> tuple[str, tuple[np.ndarray, RecordIndex]]:
    """Returns a shard with its labels as they are, and its index, whose labels are placeholders."""
    shard, features = task
    rows, labels, end, size = [], [], 0, _size(shard)
    for offset, data, checksum in _records(shard, size):
        where = f"{shard} at byte {offset}"
        label, *more = _described(data, features, where, f"{os.path.basename(shard)}:{offset}")
        labels.append(label)
        rows.append((0, offset, len(data), 0, *more, checksum))
        counts.add(offset + len(data) - end)
        end = offset + len(data)
        if counts.stopped:
            break
    if len({type(label) for label in labels}) > 1:
        raise InputError(
            f"{shard}: the feature {features.label} is a number in some records and a word in others. Use one"
            " kind."
        )
    return shard, (np.array(labels), index_of_rows((shard,), [size], rows))


def _records(shard: str, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Yields offset, data and checksum of each record of a shard; `size` is the shard's size in bytes."""
    with open_shard(shard) as file:
        end = 0
        while header := file.read(HEADER.size):
            offset = end + HEADER.size
            where = f"{shard} at byte {offset}"
            if header.startswith(_GZIP):
                raise InputError(
                    f"{shard} is compressed with gzip. Unpack it, since records are read by position."
                )
            if len(header) < HEADER.size or masked_crc(header[:8]) != HEADER.unpack(header)[1]:
                raise InputError(
                    f"{where}: no TFRecord starts here. The file is damaged or of another format."
                )
            length = HEADER.unpack(header)[0]
            block = file.read(min(length, size) + FOOTER.size)
            yield offset, verified_data(block, length, where), FOOTER.unpack(block[length:])[0]
            end = offset + len(block)


def _described(data: bytes, features: Features, where: str, name: str) -> tuple:
    """Returns label, category, role, group, whether it has a box, and id; a record without id gets `name`."""
    try:
        found = tf.train.Example.FromString(data).features.feature
    except DecodeError:
        raise InputError(f"{where}: the record is not a `tf.train.Example`.") from None
    values = {key: _values(found[key]) for key in found}
    label = values.get(features.label)
    if not label or not isinstance((values.get(features.encoded) or [None])[0], bytes):
        raise InputError(
            f"{where}: the record needs the features `{features.encoded}` (bytes) and `{features.label}` (an"
            f" integer or a word). It has {', '.join(sorted(found))}. Set the names in `features`."
        )

    def one(feature, kind, default):
        value = (values.get(feature) or [default])[0]
        if not isinstance(value, kind):
            raise InputError(f"{where}: the feature `{feature}` is {value!r}, and should be of type {kind}.")
        return value

    role = one("image/role", bytes, b"").decode(errors="replace")
    if role not in ROLES:
        raise InputError(f"{where}: the record's `image/role` is {role!r}; roles are {', '.join(ROLES[1:])}.")
    names = (values.get(key) for key in (features.id, features.filename))
    image_id = next((found_name[0] for found_name in names if found_name), name.encode())
    image_id = check_name("id", image_id if isinstance(image_id, bytes) else str(image_id).encode(), where)
    if isinstance(label[0], bytes):
        check_name("class", label[0], where)
    category, group = one(features.category, int, UNKNOWN), one("image/group", int, UNKNOWN)
    has_box = all(found[side].float_list.value for side in BOX_FEATURES)
    return label[0], category, ROLES.index(role), group, has_box, image_id


def _values(feature):
    return feature.int64_list.value or feature.bytes_list.value
