"""Records: written and read again; and every way in which they can be damaged."""

import concurrent.futures
import dataclasses
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.data import (
    LABELS,
    RECORDS,
    copy_to_memory,
    image_records,
    names_in,
    of_equal_length,
    read_all,
    write_records,
)
from tfrank.common.checks import InputError
from tfrank.data.index import index_path, load_index
from tfrank.data.prepare.scan import scan
from tfrank.data.records import (
    BOX_SIDES,
    FOOTER,
    HEADER,
    RecordReader,
    category_text,
    class_text,
    write_shard,
)

# The schema of a record. Numbers other than the label are optional.
STRINGS = ("image/encoded", "image/format", "image/class/text", "image/filename", "image/id")
BOX = [f"image/object/bbox/{side}" for side in BOX_SIDES]
SCHEMA = {
    **{key: tf.io.FixedLenFeature([], tf.string) for key in STRINGS},
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/category/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/category/text": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/group": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/role": tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: tf.io.FixedLenFeature([], tf.float32, default_value=-1) for key in BOX},
    **{f"image/face/landmark/{axis}": tf.io.VarLenFeature(tf.float32) for axis in "xy"},
}


def content(serialized):
    """What an example holds, as a record."""
    parsed = tf.io.parse_single_example(serialized, SCHEMA)
    landmarks = [tuple(parsed.pop(f"image/face/landmark/{axis}").values.numpy()) for axis in "xy"]
    values = {key: value.numpy() for key, value in parsed.items()}
    encoded, *words = (values[key] for key in STRINGS)
    image_format, text, filename, image_id = (word.decode() for word in words)
    label, *numbers = (int(values[f"image/{key}"]) for key in ("class/label", "category/label", "group"))
    category, group = (None if number < 0 else number for number in numbers)
    box = tuple(float(values[key]) for key in BOX)
    return dataclasses.replace(
        RECORDS[0],
        encoded=encoded,
        format=image_format,
        label=label,
        text=text,
        filename=filename,
        id=image_id,
        category=category,
        category_text=values["image/category/text"].decode(),
        group=group,
        role=values["image/role"].decode(),
        box=None if -1 in box else box,
        landmarks=tuple(zip(*landmarks)) or None,
    )


def change_byte(path, place, value=0xFF):
    """Flips the bits of `value` in one byte of a file."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[place] ^= value
    pathlib.Path(path).write_bytes(data)


def cut_in_half(path):
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(data[: len(data) // 2])


def test_what_is_written_comes_back(index, folder):
    opened = load_index(index_path(folder, "train"))
    assert len(opened) == len(RECORDS) and opened.num_classes == len(set(LABELS))
    assert sorted(map(content, read_all(opened)), key=lambda record: record.id) == sorted(
        RECORDS, key=lambda record: record.id
    )
    assert opened.fingerprint() == index.fingerprint()
    assert names_in(folder) == [f"train-0000{k}-of-00003.tfrecord" for k in range(3)] + ["train.index"]


def test_index_describes_the_record_of_the_same_number(index):
    for number, record in enumerate(map(content, read_all(index))):
        assert index.label[number] == record.label
        assert index.category[number] == (-1 if record.category is None else record.category)
        assert index.id[number].decode() == record.id
        assert repr(record.id) in index.describe(number)


def test_roles_groups_boxes_and_landmarks_come_back(tmp_path):
    record = dataclasses.replace(
        RECORDS[0],
        role="query",
        group=7,
        box=(0.0, 0.25, 0.5, 1.0),
        landmarks=((0.25, 0.5), (0.75, 0.5), (0.5, 0.625), (0.25, 0.75), (0.75, 0.75)),
    )
    index = write_shard([record, RECORDS[1]], str(tmp_path / "a.tfrecord"))
    assert [content(data) for data in read_all(index)] == [record, RECORDS[1]]
    assert (index.role.tolist(), index.group.tolist()) == ([1, 0], [7, -1])


def test_a_name_that_is_not_utf_8_keeps_its_bytes(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    index = write_shard(
        [dataclasses.replace(RECORDS[0], id=name, filename=name)], str(tmp_path / "a.tfrecord")
    )
    assert index.id.tolist() == [b"caf\xe9.jpg"] and "caf\ufffd.jpg" in index.describe(0)
    assert b"caf\xe9.jpg" in read_all(index)[0]


def test_a_reader_of_more_shards_than_files_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr("tfrank.data.records._OPEN_FILES", 2)
    index = write_records(RECORDS, str(tmp_path), "train", num_shards=5)
    reader = RecordReader(index)
    assert reader.read(range(len(index))) == list(tf.data.TFRecordDataset(index.shards).as_numpy_iterator())
    assert len(reader._files) == 2


def test_reader_gives_the_bytes_that_tf_data_reads(index):
    assert read_all(index) == list(tf.data.TFRecordDataset(index.shards).as_numpy_iterator())


def test_reader_reads_any_numbers_in_any_order_from_many_threads(index):
    wanted = read_all(index)
    orders = [np.random.default_rng(seed).integers(0, len(index), 50) for seed in range(40)]
    reader = RecordReader(index)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for order, got in zip(orders, pool.map(reader.read, orders)):
            assert got == [wanted[number] for number in order]


def test_class_text_is_the_class_in_words(index):
    assert class_text(read_all(index)[0]) == RECORDS[0].text


def test_category_text_is_the_category_in_words(index):
    found = {category_text(record) for record in read_all(index)}
    assert found == {"", "kind 0 ü", "kind 1 ü"} == {record.category_text for record in RECORDS}


def test_a_shard_may_be_empty_where_others_are_not(folder):
    index = write_records(RECORDS[:2], folder, "train", num_shards=4)
    assert len(read_all(index)) == 2


def test_a_remote_shard_is_read_through_tensorflow(tmp_path):
    """ram:// is TensorFlow's store in memory; gs:// goes the same way."""
    local = write_records(RECORDS, str(tmp_path), "train", num_shards=2)
    copy_to_memory(tmp_path, "ram://bucket")
    moved = tuple(f"ram://bucket/{os.path.basename(shard)}" for shard in local.shards)
    dataclasses.replace(local, shards=moved).save(str(tmp_path / "remote.index"))
    remote = load_index(str(tmp_path / "remote.index"))
    assert load_index("ram://bucket/train.index").fingerprint() == local.fingerprint()
    assert remote.shards == moved and remote.fingerprint() == local.fingerprint()
    assert read_all(remote) == read_all(local)
    tf.io.gfile.remove(moved[1])
    with pytest.raises(InputError, match=r"Cannot read the shard ram://bucket/train-00001-of"):
        read_all(remote)


def test_an_interrupted_shard_leaves_nothing_and_is_written_again(folder):
    def interrupted():
        yield from image_records([1] * 40, first=20)
        raise KeyboardInterrupt

    path = os.path.join(folder, "a.tfrecord")
    with pytest.raises(KeyboardInterrupt):
        write_shard(interrupted(), path)
    assert names_in(folder) == []
    assert read_all(write_shard(RECORDS, path)) == [record.serialize() for record in RECORDS]


@pytest.mark.parametrize(
    "use",
    [
        lambda index, folder: load_index(index_path(folder, "train")),
        lambda index, folder: scan(index.shards),
        lambda index, folder: read_all(index),
    ],
    ids=["load", "scan", "read"],
)
def test_a_missing_shard_is_named(index, folder, use):
    os.remove(index.shards[1])
    with pytest.raises(InputError, match=r"train-00001-of-00003\.tfrecord"):
        use(index, folder)


def test_a_scan_notices_any_changed_byte(index, tmp_path):
    [shard] = write_records(RECORDS[:2], str(tmp_path), "two", num_shards=1).shards
    for place in range(os.path.getsize(shard)):
        change_byte(shard, place)
        with pytest.raises(InputError, match=r"two-00000-of-00001\.tfrecord at byte \d+: "):
            scan([shard])
        change_byte(shard, place)
    assert len(scan([shard])) == 2


def test_a_scan_says_where_a_header_is_damaged(index, tmp_path):
    offset = int(index.offset[2])
    change_byte(index.shards[0], offset - HEADER.size)
    with pytest.raises(InputError, match=rf"train-00000-of-00003\.tfrecord at byte {offset}: no TFRecord"):
        scan(index.shards)


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
        scan(index.shards)
    message = r"train-00001-of-00003\.tfrecord at byte \d+ \(image id '.*'\): the shard ends inside"
    with pytest.raises(InputError, match=message):
        read_all(index)


def test_shards_of_equal_size_that_were_swapped_are_noticed(tmp_path):
    """Records of one length each, so that only their checksums tell them apart."""
    index = write_records([of_equal_length(RECORDS[1]), RECORDS[1]], str(tmp_path), "train", num_shards=2)
    first, second = index.shards
    os.rename(first, tmp_path / "aside")
    os.rename(second, first)
    os.rename(tmp_path / "aside", second)
    with pytest.raises(InputError, match=r"record 0 of .*this is not the record that was indexed"):
        read_all(load_index(index_path(str(tmp_path), "train")))
