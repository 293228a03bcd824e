"""Records: written, indexed, read again; and every way in which they can be damaged."""

import concurrent.futures
import dataclasses
import gc
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.data import LABELS, image_records, png, write_examples
from tfrank.checks import InputError
from tfrank.data.index import load_index, select_records
from tfrank.data.records import (
    FOOTER,
    HEADER,
    RecordReader,
    build_index,
    class_text,
    index_path,
    open_index,
    write_records,
)

RECORDS = image_records()
# The schema that DESIGN.md promises, of which the category is there where it is known.
STRINGS = ("image/encoded", "image/format", "image/class/text", "image/filename", "image/id")
SCHEMA = {
    **{key: tf.io.FixedLenFeature([], tf.string) for key in STRINGS},
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/category/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    return str(path)


@pytest.fixture
def index(folder):
    return write_records(RECORDS, folder, "train", num_shards=3)


def read_all(index):
    return RecordReader(index).read(range(len(index)))


def content(serialized):
    """What an example holds, as a record."""
    values = {key: value.numpy() for key, value in tf.io.parse_single_example(serialized, SCHEMA).items()}
    encoded, *words = (values[key] for key in STRINGS)
    image_format, text, filename, image_id = (word.decode() for word in words)
    label, category = values["image/class/label"], values["image/category/label"]
    return dataclasses.replace(
        RECORDS[0],
        encoded=encoded,
        format=image_format,
        label=int(label),
        text=text,
        filename=filename,
        id=image_id,
        category=None if category < 0 else int(category),
    )


def names_in(folder):
    return sorted(os.listdir(folder))


def change_byte(path, place, value=0xFF):
    """Flips the bits of `value` in one byte of a file."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[place] ^= value
    pathlib.Path(path).write_bytes(data)


def cut_in_half(path):
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(data[: len(data) // 2])


# Written and read.


def test_what_is_written_comes_back(index, folder):
    opened = open_index(folder, "train")
    assert len(opened) == len(RECORDS) and opened.num_classes == len(set(LABELS))
    assert sorted(map(content, read_all(opened)), key=lambda record: record.id) == sorted(
        RECORDS, key=lambda record: record.id
    )
    assert opened.fingerprint() == index.fingerprint()
    assert names_in(folder) == [f"train-0000{k}-of-00003.tfrecord" for k in range(3)] + ["train.index.npz"]


def test_index_describes_the_record_of_the_same_number(index):
    for number, record in enumerate(map(content, read_all(index))):
        assert index.label[number] == record.label
        assert index.category[number] == (-1 if record.category is None else record.category)
        assert index.id[number].decode() == record.id
        assert repr(record.id) in index.describe(number)


def test_reader_gives_the_bytes_that_tf_data_reads(index):
    assert read_all(index) == list(tf.data.TFRecordDataset(index.shards).as_numpy_iterator())


def test_reader_reads_any_numbers_in_any_order_from_many_threads(index):
    wanted = read_all(index)
    orders = [np.random.default_rng(seed).integers(0, len(index), 50) for seed in range(40)]
    reader = RecordReader(index)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for order, got in zip(orders, pool.map(reader.read, orders)):
            assert got == [wanted[number] for number in order]


def test_records_may_move_with_their_folder(index, folder, tmp_path):
    wanted = read_all(index)
    moved = shutil.move(folder, tmp_path / "elsewhere" / "deeper")
    assert open_index(folder, "train") is None
    opened = open_index(moved, "train")
    assert opened.fingerprint() == index.fingerprint()
    assert read_all(opened) == wanted


def larger(record):
    return dataclasses.replace(record, encoded=png(99, size=8))


def of_equal_length(record):
    """Another image in as many bytes, as all are that have one size and no compression."""
    return dataclasses.replace(record, encoded=record.encoded[::-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda records: records[:-1],
        lambda records: records[::-1],
        lambda records: [dataclasses.replace(records[0], label=4), *records[1:]],
        lambda records: [dataclasses.replace(records[0], id="image-x-ß"), *records[1:]],
        lambda records: [dataclasses.replace(records[0], category=7), *records[1:]],
        lambda records: [larger(records[0]), *records[1:]],
        lambda records: [of_equal_length(records[0]), *records[1:]],
    ],
    ids=["one less", "order", "label", "id", "category", "larger image", "image of equal length"],
)
def test_fingerprint_changes_with_the_records(index, tmp_path, change):
    changed = write_records(change(RECORDS), str(tmp_path), "train", num_shards=3)
    assert changed.fingerprint() != index.fingerprint()


def test_same_records_written_again_have_the_same_fingerprint(index, tmp_path):
    assert write_records(RECORDS, str(tmp_path), "train", num_shards=3).fingerprint() == index.fingerprint()


def test_select_records_keeps_them_and_no_others(index):
    chosen = select_records(index, np.flatnonzero(np.isin(index.label, [3, -5])))
    assert sorted(chosen.label) == [-5, 3, 3, 3, 3]
    assert sorted(content(serialized).id for serialized in read_all(chosen)) == sorted(
        record.id for record in RECORDS if record.label in (3, -5)
    )


# Made elsewhere.


def test_records_made_elsewhere_get_an_index_and_a_name_each(tmp_path):
    shards = [str(tmp_path / name) for name in ("a.tfrecord", "b.tfrecord")]
    write_examples(
        shards[0],
        {"image/encoded": b"one", "image/class/label": 7, "image/id": b"given", "image/filename": b"file"},
        {"image/encoded": b"two", "image/class/label": 8, "image/filename": b"folder/two.png", "more": 1},
    )
    write_examples(shards[1], {"image/encoded": b"three", "image/class/label": 7})
    build_index(shards, str(tmp_path / "index.npz"))
    index = load_index(str(tmp_path / "index.npz"))
    assert index.id.tolist() == [b"given", b"folder/two.png", b"b.tfrecord:12"]
    assert index.label.tolist() == [7, 8, 7] and index.category.tolist() == [-1, -1, -1]
    assert read_all(index) == list(tf.data.TFRecordDataset(shards).as_numpy_iterator())
    assert class_text(read_all(index)[0]) == ""


def test_class_text_is_the_class_in_words(index):
    assert class_text(read_all(index)[0]) == RECORDS[0].text


WHOLE = {"image/encoded": b"one", "image/class/label": 7}


@pytest.mark.parametrize(
    "features",
    [
        {"image/encoded": b"two"},
        {"image/class/label": 7},
        {"image/encoded": b"two", "image/class/label": b"cat"},
        {"image/encoded": 2, "image/class/label": 7},
    ],
    ids=["no label", "no image", "label in words", "image a number"],
)
def test_a_record_that_lacks_what_is_needed_is_named(tmp_path, features):
    shard = tmp_path / "odd.tfrecord"
    write_examples(shard, WHOLE, features)
    with pytest.raises(
        InputError, match=r"odd\.tfrecord at byte \d+: the record lacks `image/encoded` or an"
    ):
        build_index([str(shard)], str(tmp_path / "index.npz"))
    assert not (tmp_path / "index.npz").exists()


def test_a_record_that_is_no_example_is_named(tmp_path):
    shard = tmp_path / "odd.tfrecord"
    with tf.io.TFRecordWriter(str(shard)) as writer:
        writer.write(b"\xff\xff no example")
    with pytest.raises(InputError, match=r"odd\.tfrecord at byte 12"):
        build_index([str(shard)], str(tmp_path / "index.npz"))


@pytest.mark.parametrize("data", [png(0), b"x", b"label,file\n1,a.png\n"], ids=["png", "one byte", "csv"])
def test_a_file_of_another_kind_is_refused(tmp_path, data):
    (tmp_path / "other.tfrecord").write_bytes(data)
    with pytest.raises(InputError, match=r"other\.tfrecord at byte \d+: not the start of a TFRecord"):
        build_index([str(tmp_path / "other.tfrecord")], str(tmp_path / "index.npz"))


# Empty, missing, interrupted.


def test_an_empty_source_is_refused_and_leaves_nothing_to_open(folder):
    with pytest.raises(InputError, match="The source has no images for 'train'"):
        write_records([], folder, "train")
    assert open_index(folder, "train") is None
    assert not any(name.endswith((".tfrecord", ".npz")) for name in names_in(folder))


def test_shards_without_records_are_refused(tmp_path):
    write_examples(tmp_path / "empty.tfrecord")
    with pytest.raises(InputError, match=r"There are no records in .*empty\.tfrecord"):
        build_index([str(tmp_path / "empty.tfrecord")], str(tmp_path / "index.npz"))


def test_a_shard_may_be_empty_where_others_are_not(folder):
    index = write_records(RECORDS[:2], folder, "train", num_shards=4)
    assert len(read_all(index)) == 2


def test_records_are_not_written_to_a_folder_that_is_missing(folder):
    with pytest.raises(InputError, match=r"Cannot write the records of 'train' to .*missing"):
        write_records(RECORDS, os.path.join(folder, "missing"), "train")


def test_an_interrupted_writing_leaves_nothing_to_open_and_is_done_again(folder):
    def interrupted():
        yield from image_records([1] * 40, first=20)
        raise KeyboardInterrupt

    # Like a notebook, `interruption` keeps the frames of the first writing, and so its writers, alive.
    with pytest.raises(KeyboardInterrupt) as interruption:
        write_records(interrupted(), folder, "train", num_shards=3)
    assert open_index(folder, "train") is None
    assert not any(name.endswith((".tfrecord", ".npz")) for name in names_in(folder))

    index = write_records(RECORDS, folder, "train", num_shards=3)
    wanted = [path.read_bytes() for path in map(pathlib.Path, index.shards)]
    assert not any(name.endswith(".tmp") for name in names_in(folder))
    del interruption
    gc.collect()
    assert [path.read_bytes() for path in map(pathlib.Path, index.shards)] == wanted
    assert sorted(map(content, read_all(index)), key=lambda record: record.id) == sorted(
        RECORDS, key=lambda record: record.id
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda index, folder: open_index(folder, "train"),
        lambda index, folder: build_index(index.shards, index_path(folder, "train")),
        lambda index, folder: RecordReader(index),
    ],
    ids=["load", "scan", "read"],
)
def test_a_missing_shard_is_named(index, folder, use):
    os.remove(index.shards[1])
    with pytest.raises(InputError, match=r"train-00001-of-00003\.tfrecord"):
        use(index, folder)


def test_a_missing_index_is_named(folder):
    with pytest.raises(InputError, match=r"No record index at .*train\.index\.npz"):
        load_index(index_path(folder, "train"))


# Damaged.


def test_a_scan_notices_any_changed_byte(index, tmp_path):
    [shard] = write_records(RECORDS[:2], str(tmp_path), "two", num_shards=1).shards
    for place in range(os.path.getsize(shard)):
        change_byte(shard, place)
        with pytest.raises(InputError, match=r"two-00000-of-00001\.tfrecord at byte \d+: "):
            build_index([shard], str(tmp_path / "index.npz"))
        change_byte(shard, place)
    assert len(build_index([shard], str(tmp_path / "index.npz"))) == 2


def test_a_scan_says_where_a_header_is_damaged(index, tmp_path):
    offset = int(index.offset[2])
    change_byte(index.shards[0], offset - HEADER.size)
    with pytest.raises(InputError, match=rf"train-00000-of-00003\.tfrecord at byte {offset}: not the start"):
        build_index(index.shards, str(tmp_path / "index.npz"))


@pytest.mark.parametrize("part", ["first byte", "last byte", "checksum"])
def test_reader_names_shard_offset_and_image_of_a_changed_record(index, part):
    number = int(np.flatnonzero(index.id == b"image-4-\xc3\x9f")[0])
    begin, length = int(index.offset[number]), int(index.length[number])
    place = {"first byte": 0, "last byte": length - 1, "checksum": length + FOOTER.size - 1}[part]
    change_byte(index.shards[index.shard[number]], begin + place)
    reader = RecordReader(index)
    message = (
        rf"record {number} of .*train-00001-of-00003\.tfrecord at byte {begin} "
        r"\(image id 'image-4-ß'\): the bytes of this record changed since they were written"
    )
    with pytest.raises(InputError, match=message):
        reader.read(range(len(index)))
    assert len(reader.read([n for n in range(len(index)) if n != number])) == len(index) - 1


def test_a_shard_cut_in_half_is_noticed_by_scan_and_reader(index, tmp_path):
    cut_in_half(index.shards[1])
    with pytest.raises(
        InputError, match=r"train-00001-of-00003\.tfrecord at byte \d+: the shard ends inside"
    ):
        build_index(index.shards, str(tmp_path / "index.npz"))
    message = r"train-00001-of-00003\.tfrecord at byte \d+ \(image id '.*'\): the shard ends inside"
    with pytest.raises(InputError, match=message):
        read_all(index)


def test_an_index_with_a_byte_changed_or_its_end_cut_off_is_refused_unless_it_reads_the_same(index, folder):
    path = index_path(folder, "train")
    data = pathlib.Path(path).read_bytes()
    # Every third byte, to be quick; fields of two bytes are met too, as the entries differ in length.
    places = range(0, len(data), 3)
    damaged = [data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :] for place in places]
    damaged += [data[:length] for length in range(0, len(data), 50)]
    refused = 0
    for bad in damaged:
        pathlib.Path(path).write_bytes(bad)
        try:
            assert load_index(path).fingerprint() == index.fingerprint()
        except InputError as error:
            assert f"{path} is damaged" in str(error) and "Delete it to have it rebuilt" in str(error)
            refused += 1
    assert refused > len(damaged) / 2
