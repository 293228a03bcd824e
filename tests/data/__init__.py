"""What the tests of data share: small pictures, and records of them."""

import dataclasses
import functools
import glob
import io
import os

import numpy as np
import tensorflow as tf
from PIL import Image

from tfrank.data.index import concatenate, index_path, load_index
from tfrank.data.records import ImageRecord, RecordReader, write_shard

# Classes of 4, 3, 2, 1 and 1 images; labels of any size and sign.
LABELS = [3, 1, 3, 2, 1, 3, 2**40, 1, 3, -5, 2]


@functools.cache
def picture(number, size=4):
    """`[size, size, 3]` random pixels, other ones for another number."""
    return np.random.default_rng(number).integers(0, 256, [size, size, 3], np.uint8)


@functools.cache
def png(number, size=4):
    """The file of a picture."""
    file = io.BytesIO()
    Image.fromarray(picture(number, size)).save(file, "png")
    return file.getvalue()


def image_records(labels=LABELS, *, first=0):
    """A record for each label, with the pictures from `first` on."""
    return [
        ImageRecord(
            encoded=png(number),
            format="png",
            label=label,
            text=f"class {label} å",
            filename=f"folder/{number}.png",
            id=f"image-{number}-ß",
            category=None if number % 4 == 0 else label % 2,
            category_text="" if number % 4 == 0 else f"kind {label % 2} ü",
        )
        for number, label in enumerate(labels, start=first)
    ]


RECORDS = image_records()


def write_examples(path, *examples):
    """A shard of examples as another program would write it, each given by its features."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for features in examples:
            writer.write(example(features))


def example(features):
    """A serialised `tf.train.Example` of features that are bytes or integers."""
    lists = {
        key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value, bytes)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for key, value in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def write_records(records, folder, split, *, num_shards=4):
    """Records dealt out to shards, and their index, as `prepare` leaves them."""
    names = [os.path.join(folder, f"{split}-{k:05d}-of-{num_shards:05d}.tfrecord") for k in range(num_shards)]
    index = concatenate([write_shard(records[k::num_shards], name) for k, name in enumerate(names)])
    index.save(index_path(folder, split))
    return load_index(index_path(folder, split))


def copy_to_memory(folder, store):
    """Copies a folder to TensorFlow's store in memory, as `gsutil cp -r` copies one to gs://."""
    for path in filter(os.path.isfile, glob.glob(f"{folder}/**", recursive=True)):
        there = f"{store}/{os.path.relpath(path, folder)}"
        tf.io.gfile.makedirs(os.path.dirname(there))
        tf.io.gfile.copy(path, there, overwrite=True)


def read_all(index):
    return RecordReader(index).read(range(len(index)))


def names_in(folder):
    return sorted(os.listdir(folder))


def of_equal_length(record):
    """Another image in as many bytes, as all are that have one size and no compression."""
    return dataclasses.replace(record, encoded=record.encoded[::-1])
