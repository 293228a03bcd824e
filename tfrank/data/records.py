"""TFRecord shards of `tf.train.Example`: schema, writer, scan, and a reader by record number.

A record in a shard is: length (8 bytes, little-endian), its masked CRC32C (4), the data, and the
data's masked CRC32C (4).
"""

import contextlib
import dataclasses
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfrank.checks import InputError
from tfrank.data.index import RecordIndex, load_index

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class ImageRecord:
    """One image with its class, as a source yields it.

    Attributes:
        encoded: the bytes of a JPEG, PNG, GIF or BMP file.
        format: "jpeg", "png", "gif" or "bmp".
        label: class, any int64; images of one class share it.
        text: the class in words.
        filename: where the image came from, relative to the source.
        id: a name that no other image of the data set has.
        category: a coarser class, if there is one.
    """

    encoded: bytes
    format: str
    label: int
    text: str
    filename: str
    id: str
    category: int | None = None

    def serialize(self) -> bytes:
        """The record as a serialised `tf.train.Example`."""
        strings = {
            "image/encoded": self.encoded,
            "image/format": self.format.encode(),
            "image/class/text": self.text.encode(),
            "image/filename": self.filename.encode(),
            "image/id": self.id.encode(),
        }
        features = {
            key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
            for key, value in strings.items()
        }
        numbers = {"image/class/label": self.label}
        if self.category is not None:
            numbers["image/category/label"] = self.category
        for key, value in numbers.items():
            features[key] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        example = tf.train.Example(features=tf.train.Features(feature=features))
        # The order of a map differs from process to process; records written again have to be the same.
        return example.SerializeToString(deterministic=True)


def write_records(
    records: Iterable[ImageRecord], folder: str, split: str, *, num_shards: int = 4
) -> RecordIndex:
    """Writes shards `<split>-00000-of-00004.tfrecord` and then their index `<split>.index.npz`.

    Shards take their names when all are written and the index comes last, so an index that is there
    is complete, and an interrupted writing is simply done again.

    Raises:
        InputError: where `records` is empty, or the disk is full.
    """
    names = [os.path.join(folder, f"{split}-{k:05d}-of-{num_shards:05d}.tfrecord") for k in range(num_shards)]
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(tf.io.TFRecordWriter(f"{name}.tmp")) for name in names]
            count = 0
            for record in records:
                writers[count % num_shards].write(record.serialize())
                count += 1
    except tf.errors.OpError as error:
        raise InputError(f"Cannot write the records of {split!r} to {folder}: {error.message}") from None
    if not count:
        raise InputError(f"The source has no images for {split!r}.")
    for name in names:
        os.replace(f"{name}.tmp", name)
    return build_index(names, index_path(folder, split))


def index_path(folder: str, split: str) -> str:
    """Where the index of a split is kept."""
    return os.path.join(folder, f"{split}.index.npz")


def open_index(folder: str, split: str) -> RecordIndex | None:
    """The index of a split, or None where it has not been written."""
    path = index_path(folder, split)
    return load_index(path) if os.path.exists(path) else None


def build_index(shards: Sequence[str], path: str) -> RecordIndex:
    """Indexes shards, ours or made elsewhere, by one scan that checks every record, and saves it.

    Records need `image/encoded` and an integer `image/class/label`. Where `image/id` is missing,
    the image's file name stands in, or shard and number.
    """
    rows = [row for number, shard in enumerate(shards) for row in _scan(shard, number)]
    if not rows:
        raise InputError(f"There are no records in {', '.join(shards)}.")
    shard, offset, length, label, category, image_id, checksum = zip(*rows)
    index = RecordIndex(
        shards=tuple(shards),
        shard=np.array(shard, np.int32),
        offset=np.array(offset, np.int64),
        length=np.array(length, np.int64),
        label=np.array(label, np.int64),
        category=np.array(category, np.int64),
        id=np.array(image_id, np.bytes_),
        checksum=np.array(checksum, np.uint32),
    )
    index.save(path)
    return index


def _scan(shard: str, number: int) -> Iterator[tuple]:
    with _open(shard) as file:
        while header := file.read(HEADER.size):
            offset = file.tell()
            where = f"{shard} at byte {offset}"
            if len(header) < HEADER.size or _masked_crc(header[:8]) != HEADER.unpack(header)[1]:
                raise InputError(
                    f"{where}: not the start of a TFRecord. The file is damaged or of another kind."
                )
            length = HEADER.unpack(header)[0]
            block = file.read(length + FOOTER.size)
            data = _checked(block, length, where)
            try:
                features = tf.train.Example.FromString(data).features.feature
            except DecodeError:
                raise InputError(f"{where}: the record is no `tf.train.Example`.") from None
            label = features["image/class/label"].int64_list.value
            if not label or not features["image/encoded"].bytes_list.value:
                raise InputError(
                    f"{where}: the record lacks `image/encoded` or an integer `image/class/label`."
                )
            category = features["image/category/label"].int64_list.value or [-1]
            names = (features[key].bytes_list.value for key in ("image/id", "image/filename"))
            image_id = next(
                (name[0] for name in names if name), f"{os.path.basename(shard)}:{offset}".encode()
            )
            (checksum,) = FOOTER.unpack(block[length:])
            yield number, offset, length, label[0], category[0], image_id, checksum


def _open(shard: str) -> BinaryIO:
    try:
        return open(shard, "rb")
    except OSError as error:
        raise InputError(f"Cannot read the shard {shard} ({error.strerror}).") from None


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _checked(block: bytes, length: int, where: str) -> bytes:
    """The data of a block of data and footer, if they are all there and agree."""
    if len(block) < length + FOOTER.size:
        raise InputError(f"{where}: the shard ends inside this record. It was cut off; write it again.")
    data = block[:length]
    if _masked_crc(data) != FOOTER.unpack(block[length:])[0]:
        raise InputError(f"{where}: the bytes of this record changed since they were written (checksum).")
    return data


def class_text(serialized: bytes) -> str:
    """The class in words, "" where the record does not say."""
    text = tf.train.Example.FromString(serialized).features.feature["image/class/text"].bytes_list.value
    return text[0].decode(errors="replace") if text else ""


class RecordReader:
    """Reads records of an index by number, each with its checksum checked. Safe among threads."""

    def __init__(self, index: RecordIndex):
        self.index = index
        self._files = [_open(shard) for shard in index.shards]

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The serialised examples of these records; InputError names the first that is damaged."""
        index = self.index
        blocks = []
        for number in numbers:
            length = int(index.length[number])
            file = self._files[index.shard[number]].fileno()
            block = os.pread(file, length + FOOTER.size, int(index.offset[number]))
            blocks.append(_checked(block, length, index.describe(number)))
        return blocks
