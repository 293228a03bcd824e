"""Records: written, indexed, read again; and every way in which they can be damaged."""

import concurrent.futures
import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.data import LABELS, image_records, png, write_records
from tfrank.common.checks import InputError
from tfrank.data.index import concatenate, index_path, load_index, select
from tfrank.data.prepare.scan import scan
from tfrank.data.records import (
    BOX_SIDES,
    FOOTER,
    HEADER,
    RecordReader,
    class_text,
    write_shard,
)

RECORDS = image_records()
# The schema that DESIGN.md promises, of which the numbers but the label are there where they are known.
STRINGS = ("image/encoded", "image/format", "image/class/text", "image/filename", "image/id")
BOX = [f"image/object/bbox/{side}" for side in BOX_SIDES]
SCHEMA = {
    **{key: tf.io.FixedLenFeature([], tf.string) for key in STRINGS},
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/category/label": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/group": tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    "image/role": tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: tf.io.FixedLenFeature([], tf.float32, default_value=-1) for key in BOX},
    **{f"image/face/landmark/{axis}": tf.io.VarLenFeature(tf.float32) for axis in "xy"},
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
        group=group,
        role=values["image/role"].decode(),
        box=None if -1 in box else box,
        landmarks=tuple(zip(*landmarks)) or None,
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
    opened = load_index(index_path(folder, "train"))
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


def test_indexes_side_by_side_read_as_one(index, tmp_path):
    more = write_shard(image_records([5, 6], first=50), str(tmp_path / "more.tfrecord"))
    both = concatenate([index, more])
    assert read_all(both) == read_all(index) + read_all(more)
    chosen = select(both, [len(index), 2])
    assert read_all(chosen) == [read_all(more)[0], read_all(index)[2]]
    assert both.describe(len(index)).startswith(f"record {len(index)} of {tmp_path}/more.tfrecord at byte 12")


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


def test_records_may_move_with_their_folder(index, folder, tmp_path):
    wanted = read_all(index)
    moved = shutil.move(folder, tmp_path / "elsewhere" / "deeper")
    opened = load_index(index_path(moved, "train"))
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


def test_select_keeps_these_records_and_no_others(index):
    chosen = select(index, np.flatnonzero(np.isin(index.label, [3, -5])))
    assert sorted(chosen.label) == [-5, 3, 3, 3, 3]
    assert sorted(content(serialized).id for serialized in read_all(chosen)) == sorted(
        record.id for record in RECORDS if record.label in (3, -5)
    )


def test_class_text_is_the_class_in_words(index):
    assert class_text(read_all(index)[0]) == RECORDS[0].text


# Empty, missing, interrupted.


def test_a_shard_may_be_empty_where_others_are_not(folder):
    index = write_records(RECORDS[:2], folder, "train", num_shards=4)
    assert len(read_all(index)) == 2


def test_a_remote_shard_is_read_through_tensorflow(tmp_path):
    """ram:// is TensorFlow's store in memory; gs:// goes the same way."""
    local = write_records(RECORDS, str(tmp_path), "train", num_shards=2)
    tf.io.gfile.makedirs("ram://bucket")
    for path in (*local.shards, index_path(str(tmp_path), "train")):
        tf.io.gfile.copy(path, f"ram://bucket/{os.path.basename(path)}", overwrite=True)
    moved = tuple(f"ram://bucket/{os.path.basename(shard)}" for shard in local.shards)
    dataclasses.replace(local, shards=moved).save(str(tmp_path / "remote.npz"))
    remote = load_index(str(tmp_path / "remote.npz"))
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


def test_a_missing_index_is_named(folder):
    with pytest.raises(InputError, match=r"No record index at .*train\.index\.npz"):
        load_index(index_path(folder, "train"))


# Damaged.


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
    with pytest.raises(InputError, match=rf"train-00000-of-00003\.tfrecord at byte {offset}: not the start"):
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


@pytest.mark.parametrize(
    "name, change",
    [
        ("shard", lambda column: column + 3),
        ("shard", lambda column: column - 1),
        ("offset", lambda column: column - 10**6),
        ("offset", lambda column: column + 10**15),
        ("length", lambda column: column + 10**15),
        ("length", lambda column: column * 0 + (2**63 - 1)),
        ("length", lambda column: -column),
        ("role", lambda column: column + 100),
        ("size", lambda column: column.astype(str)),
        ("size", lambda column: column[:1]),
        ("size", lambda column: np.array(5)),
        ("label", lambda column: np.int64(3)),
        ("shards", lambda column: np.array(3)),
        ("shards", lambda column: column[:0]),
    ],
)
def test_an_index_that_was_edited_by_hand_is_named_in_one_line(index, folder, name, change):
    path = index_path(folder, "train")
    with np.load(path) as arrays:
        columns = dict(arrays)
    np.savez(path, **{**columns, name: change(columns[name])})
    message = rf"{path} is damaged, or of an earlier version \(.*Delete it to have it rebuilt"
    with pytest.raises(InputError, match=message) as caught:
        read_all(load_index(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shard", ["..", "no\0name", "a" * 300])
def test_an_index_that_names_what_is_no_shard_is_said_to(index, folder, shard):
    path = index_path(folder, "train")
    with np.load(path) as arrays:
        columns = dict(arrays)
    np.savez(path, **{**columns, "shards": np.array([shard, *columns["shards"][1:]])})
    with pytest.raises(InputError, match=r"train\.index\.npz") as caught:
        load_index(path)
    assert "\n" not in str(caught.value)


def test_one_long_id_does_not_make_the_index_of_all_records_large(tmp_path):
    long = dataclasses.replace(RECORDS[0], id="x" * 10**7)
    with pytest.raises(InputError, match=r"id of .* has 10,000,000 bytes, and may have 1,024.*shorter"):
        write_shard([*RECORDS[1:], long], str(tmp_path / "a.tfrecord"))
    assert not os.listdir(tmp_path)
    just = dataclasses.replace(RECORDS[0], id="x" * 1024)
    assert write_shard([just], str(tmp_path / "a.tfrecord")).id.nbytes == 1024


def test_a_shard_of_another_size_than_when_indexed_is_named(index, folder):
    with open(index.shards[1], "ab") as file:
        file.write(b"more")
    with pytest.raises(
        InputError, match=r"shard .*00001-of-00003\.tfrecord has [\d,]+ bytes, and had [\d,]+ when"
    ):
        load_index(index_path(folder, "train"))


def test_shards_of_equal_size_that_were_swapped_are_noticed(tmp_path):
    """Records of one length each, so that only their checksums tell them apart."""
    index = write_records([of_equal_length(RECORDS[1]), RECORDS[1]], str(tmp_path), "train", num_shards=2)
    first, second = index.shards
    os.rename(first, tmp_path / "aside")
    os.rename(second, first)
    os.rename(tmp_path / "aside", second)
    with pytest.raises(InputError, match=r"record 0 of .*another record stands there than was indexed"):
        read_all(load_index(index_path(str(tmp_path), "train")))
