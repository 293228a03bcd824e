"""TFRecord shards of `tf.train.Example`: schema, writer, and a reader by record number.

A record in a shard is: length (8 bytes, little-endian), its masked CRC32C (4), the data, and the
data's masked CRC32C (4).
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import struct
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import COLUMN_TYPES, COLUMNS, RecordIndex, check_name
from tfrank.data.sources.image import ROLES

BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")
BOX_FEATURES = tuple(f"image/object/bbox/{side}" for side in BOX_SIDES)
HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
# Maximum number of files that a reader keeps open; systems commonly allow a process 1,024. And maximum
# number of concurrent reads from a remote store.
_OPEN_FILES = 500
_REMOTE_READS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image with its class and metadata.

    Attributes:
        encoded: the bytes of a JPEG, PNG, WebP, GIF or BMP file.
        format: "jpeg", "png", "webp", "gif" or "bmp".
        label, text, id, category, category_text, role, group: see `sources.image.SourceImage`.
        filename: where the image came from, relative to the source.
        box: (xmin, ymin, xmax, ymax) of the object, as shares of the image's width and height, if known.
        landmarks: five (x, y) of a face, in the same units, if known.
    """

    encoded: bytes
    format: str
    label: int
    text: str
    filename: str
    id: str
    category: int | None = None
    category_text: str = ""
    role: str = ""
    group: int | None = None
    box: tuple[float, ...] | None = None
    landmarks: tuple[tuple[float, float], ...] | None = None

    def serialize(self) -> bytes:
        """The record as a serialised `tf.train.Example`."""
        values = {
            "image/encoded": self.encoded,
            "image/format": self.format,
            "image/class/text": self.text,
            "image/class/label": self.label,
            "image/filename": self.filename,
            "image/id": self.id,
            "image/category/label": self.category,
            "image/category/text": self.category_text or None,
            "image/role": self.role or None,
            "image/group": self.group,
        }
        if self.box is not None:
            values |= {feature: [side] for feature, side in zip(BOX_FEATURES, self.box)}
        if self.landmarks is not None:
            for axis, places in zip("xy", zip(*self.landmarks)):
                values[f"image/face/landmark/{axis}"] = list(places)
        features = {key: _feature(value) for key, value in values.items() if value is not None}
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # Map order differs between processes, but writing a record again must give the same bytes.
        return example.SerializeToString(deterministic=True)


def _feature(value):
    if isinstance(value, list):
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    # File names that are not UTF-8 keep their bytes.
    data = value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))


def write_shard(records: Iterable[ImageRecord], path: str) -> RecordIndex:
    """Writes one shard, whole or not at all, and returns the index of its records."""
    rows, end = [], 0
    with files.atomic_write(path) as file:
        for record in records:
            data = record.serialize()
            header = struct.pack("<Q", len(data))
            checksum = masked_crc(data)
            file.write(header + FOOTER.pack(masked_crc(header)) + data + FOOTER.pack(checksum))
            category, group = (UNKNOWN if x is None else x for x in (record.category, record.group))
            image_id = check_name("id", record.id.encode(errors="surrogateescape"), record.filename[:100])
            row = (0, end + HEADER.size, len(data), record.label, category, ROLES.index(record.role))
            rows.append((*row, group, record.box is not None, image_id, checksum))
            end += HEADER.size + len(data) + FOOTER.size
    return index_of_rows((path,), [end], rows)


def index_of_rows(shards: Sequence[str], sizes: Sequence[int], rows: Sequence[tuple]) -> RecordIndex:
    """Builds an index from the shards' paths and sizes in bytes, and a tuple of all columns per record."""
    columns = zip(*rows) if rows else [()] * len(COLUMNS)
    arrays = {name: np.array(column, COLUMN_TYPES[name]) for name, column in zip(COLUMNS, columns)}
    return RecordIndex(shards=tuple(shards), size=np.array(sizes, np.int64), **arrays)


def open_shard(shard: str) -> BinaryIO:
    """Opens a local or remote shard for reading; raises InputError if it cannot be read."""
    try:
        if files.is_remote(shard):
            file = tf.io.gfile.GFile(shard, "rb")
            file.size()  # GFile opens the file only on first use.
            return file
        return open(shard, "rb")
    except (OSError, tf.errors.OpError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise InputError(f"Cannot read the shard {shard} ({reason}).") from None


def masked_crc(data: bytes) -> int:
    """Computes the masked CRC32C checksum of TFRecords."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def verified_data(block: bytes, length: int, where: str) -> bytes:
    """Returns the data of a block of data and footer; raises InputError if it is cut off or damaged."""
    if len(block) < length + FOOTER.size:
        raise InputError(f"{where}: the shard ends inside this record. Write or download the shard again.")
    data = block[:length]
    if masked_crc(data) != FOOTER.unpack(block[length:])[0]:
        raise InputError(
            f"{where}: the bytes of this record changed since they were written (checksum)."
            " Prepare the records again, or download the shard again."
        )
    return data


def class_text(serialized: bytes, feature: str = "image/class/text") -> str:
    """Returns the class in words; "" if the record has no such feature."""
    text = tf.train.Example.FromString(serialized).features.feature[feature].bytes_list.value
    return text[0].decode(errors="backslashreplace") if text else ""


def category_text(serialized: bytes) -> str:
    """Returns the category in words; "" if the record has none."""
    return class_text(serialized, "image/category/text")


def encoded_image(serialized: bytes) -> bytes:
    """Returns the image file in a record of ours."""
    return tf.train.Example.FromString(serialized).features.feature["image/encoded"].bytes_list.value[0]


class RecordReader(contextlib.AbstractContextManager):
    """Reads records of an index by number and checks their checksums. Thread-safe.

    TensorFlow never releases the Python objects that a pipeline uses. So close a reader after its last pass.
    """

    def __init__(self, index: RecordIndex):
        self.index = index
        self._files = {}
        self._pool = None
        if any(map(files.is_remote, index.shards)):
            self._pool = concurrent.futures.ThreadPoolExecutor(_REMOTE_READS)

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        opened, self._files = self._files, {}
        for file in opened.values():
            file.close()

    def __exit__(self, *exception):
        self.close()

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the serialised examples of these records; raises InputError for a damaged one."""
        return list((self._pool.map if self._pool else map)(self._read, numbers))

    def _read(self, number):
        index, length = self.index, int(self.index.length[number])
        shard, offset = index.shards[index.shard[number]], int(index.offset[number])
        block = self._bytes(shard, offset, length + FOOTER.size)
        data = verified_data(block, length, index.describe(number))
        if FOOTER.unpack(block[length:])[0] != index.checksum[number]:
            raise InputError(
                f"{index.describe(number)}: this is not the record that was indexed. The shard was replaced;"
                " delete the index to have it rebuilt."
            )
        return data

    def _bytes(self, shard, offset, count):
        if files.is_remote(shard):
            try:
                with tf.io.gfile.GFile(shard, "rb") as file:
                    file.seek(offset)
                    return file.read(count)
            except tf.errors.OpError as error:
                raise InputError(f"Cannot read the shard {shard} ({error.message}).") from None
        file = self._files.get(shard)
        if file is None:
            file = open_shard(shard)
            if len(self._files) >= _OPEN_FILES:
                with file:
                    return os.pread(file.fileno(), count, offset)
            self._files[shard] = file
        return os.pread(file.fileno(), count, offset)
