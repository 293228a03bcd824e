"""The index: stored, opened, joined; and every way in which it can be damaged."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil

import google_crc32c
import numpy as np
import pytest

from tests.data import (
    RECORDS,
    image_records,
    names_in,
    of_equal_length,
    png,
    read_all,
    write_records,
)
from tfrank.common.checks import InputError
from tfrank.data.index import concatenate, index_path, load_index, select
from tfrank.data.records import (
    write_shard,
)


def test_indexes_side_by_side_read_as_one(index, tmp_path):
    more = write_shard(image_records([5, 6], first=50), str(tmp_path / "more.tfrecord"))
    both = concatenate([index, more])
    assert read_all(both) == read_all(index) + read_all(more)
    chosen = select(both, [len(index), 2])
    assert read_all(chosen) == [read_all(more)[0], read_all(index)[2]]
    assert both.describe(len(index)).startswith(f"record {len(index)} of {tmp_path}/more.tfrecord at byte 12")


def test_records_may_move_with_their_folder(index, folder, tmp_path):
    wanted = read_all(index)
    moved = shutil.move(folder, tmp_path / "elsewhere" / "deeper")
    opened = load_index(index_path(moved, "train"))
    assert opened.fingerprint() == index.fingerprint()
    assert read_all(opened) == wanted


def larger(record):
    return dataclasses.replace(record, encoded=png(99, size=8))


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
    assert sorted(image_id.decode() for image_id in chosen.id) == sorted(
        record.id for record in RECORDS if record.label in (3, -5)
    )


def test_a_missing_index_is_named(folder):
    with pytest.raises(InputError, match=r"There is no record index at .*train\.index\.$"):
        load_index(index_path(folder, "train"))


def test_an_index_with_a_byte_changed_or_its_end_cut_off_is_refused(index, folder):
    path = pathlib.Path(index_path(folder, "train"))
    for file in path.iterdir():
        data = file.read_bytes()
        damaged = [data[:k] + bytes([data[k] ^ 0xFF]) + data[k + 1 :] for k in range(0, len(data), 7)]
        for bad in [*damaged, *(data[:length] for length in range(0, len(data) - 1, 50))]:
            file.write_bytes(bad)
            with pytest.raises(InputError) as caught:
                load_index(str(path))
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)
            if file.suffix == ".npy":
                assert f"{path} is damaged" in str(caught.value)
                assert "Delete it to have it rebuilt" in str(caught.value)
        file.write_bytes(data)


def edit(path, name, change):
    """Changes a column of a stored index, or a part of its header, and corrects the checksum."""
    header, file = os.path.join(path, "index.json"), os.path.join(path, f"{name}.npy")
    tree = json.loads(pathlib.Path(header).read_text())
    if name in tree:
        tree[name] = change(tree[name])
    else:
        np.save(file, change(np.load(file)))
        tree["crc32c"][name] = google_crc32c.value(pathlib.Path(file).read_bytes())
    pathlib.Path(header).write_text(json.dumps(tree))


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
        ("category", lambda column: column.astype(float)),
        ("group", lambda column: column.astype(object)),
        ("label", lambda column: np.int64(3)),
        ("label", lambda column: column[:-1]),
        ("id", lambda column: np.arange(len(column))),
        ("sizes", lambda sizes: sizes[:1]),
        ("sizes", lambda sizes: 5),
        ("shards", lambda shards: 3),
        ("shards", lambda shards: []),
    ],
)
def test_an_index_that_was_edited_by_hand_is_named_in_one_line(index, folder, name, change):
    path = index_path(folder, "train")
    edit(path, name, change)
    message = rf"{path} is damaged \(.*Delete it to have it rebuilt"
    with pytest.raises(InputError, match=message) as caught:
        read_all(load_index(path))
    assert "\n" not in str(caught.value)


def write_older_version(path):
    edit(path, "version", lambda version: version - 1)


def write_one_file(path):
    shutil.rmtree(path)
    np.savez(f"{path}.npz", label=np.arange(3))
    os.rename(f"{path}.npz", path)


@pytest.mark.parametrize("write", [write_older_version, write_one_file])
def test_an_index_of_another_version_is_refused(index, folder, write):
    path = index_path(folder, "train")
    write(path)
    with pytest.raises(InputError, match=rf"{path} was written by another version.*run prepare again"):
        load_index(path)
    index.save(path)
    assert load_index(path).fingerprint() == index.fingerprint()


def test_an_index_that_lacks_a_column_is_refused(index, folder):
    path = index_path(folder, "train")
    os.remove(os.path.join(path, "group.npy"))
    with pytest.raises(InputError, match=rf"{path} is damaged \(.*group\.npy"):
        load_index(path)


def test_an_interrupted_index_leaves_that_of_before(index, folder, monkeypatch):
    path = index_path(folder, "train")
    monkeypatch.setattr("tfrank.common.files.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        select(index, [0]).save(path)
    assert load_index(path).fingerprint() == index.fingerprint()
    assert names_in(folder)[-1] == "train.index"


def test_an_index_written_by_several_at_once_is_that_of_one_of_them(index, folder):
    path = index_path(folder, "train")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: index.save(path), range(40)))
    assert load_index(path).fingerprint() == index.fingerprint()
    assert names_in(folder)[-1] == "train.index"


@pytest.mark.parametrize("shard", ["..", "no\0name", "a" * 300])
def test_an_index_that_names_what_is_no_shard_is_said_to(index, folder, shard):
    path = index_path(folder, "train")
    edit(path, "shards", lambda shards: [shard, *shards[1:]])
    with pytest.raises(InputError, match=r"train\.index") as caught:
        load_index(path)
    assert "\n" not in str(caught.value)


def test_one_long_id_does_not_make_the_index_of_all_records_large(tmp_path):
    long = dataclasses.replace(RECORDS[0], id="x" * 10**7)
    with pytest.raises(InputError, match=r"id of .* has 10,000,000 bytes; at most 1,024 are.*Shorten"):
        write_shard([*RECORDS[1:], long], str(tmp_path / "a.tfrecord"))
    assert not os.listdir(tmp_path)
    just = dataclasses.replace(RECORDS[0], id="x" * 1024)
    assert write_shard([just], str(tmp_path / "a.tfrecord")).id.nbytes == 1024


def test_a_shard_of_another_size_than_when_indexed_is_named(index, folder):
    with open(index.shards[1], "ab") as file:
        file.write(b"more")
    with pytest.raises(
        InputError, match=r"shard .*00001-of-00003\.tfrecord has [\d,]+ bytes, but .* expects [\d,]+\."
    ):
        load_index(index_path(folder, "train"))
