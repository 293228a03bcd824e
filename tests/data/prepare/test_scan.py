"""Records made elsewhere: found, scanned once, indexed, and refused by name where they lack something."""

import dataclasses
import os
import pathlib
import unicodedata

import pytest
import tensorflow as tf

from tests.data import image_records, png, write_examples
from tfrank.common.checks import InputError
from tfrank.data.prepare.scan import Features, open_foreign_records, scan
from tfrank.data.records import RecordReader, write_shard

WHOLE = {"image/encoded": b"one", "image/class/label": 7}


def read_all(index):
    return RecordReader(index).read(range(len(index)))


@pytest.fixture
def shards(tmp_path):
    paths = [str(tmp_path / name) for name in ("train-a.tfrecord", "train-b.tfrecord")]
    write_examples(
        paths[0],
        {**WHOLE, "image/id": b"given", "image/filename": b"file", "image/category/label": 3},
        {"image/encoded": b"two", "image/class/label": 8, "image/filename": b"folder/two.png", "more": 1},
    )
    write_examples(paths[1], {"image/encoded": b"three", "image/class/label": 7})
    return paths


def opened(folder, cache, patterns=("train-*",), features=None, processes=1):
    return open_foreign_records(
        patterns, str(folder), features=features or Features(), cache=str(cache), processes=processes
    )


def test_records_made_elsewhere_get_an_index_and_a_name_each(shards):
    index = scan(shards)
    assert index.id.tolist() == [b"given", b"folder/two.png", b"train-b.tfrecord:12"]
    assert index.label.tolist() == [7, 8, 7] and index.category.tolist() == [3, -1, -1]
    assert read_all(index) == list(tf.data.TFRecordDataset(shards).as_numpy_iterator())


def test_several_processes_find_the_same(shards):
    assert scan(shards, processes=2).fingerprint() == scan(shards).fingerprint()


def test_features_may_have_other_names_and_labels_be_words(tmp_path):
    write_examples(
        tmp_path / "x.tfrecord", {"jpg": b"1", "species": b"owl", "key": 5}, {"jpg": b"2", "species": b"cat"}
    )
    write_examples(tmp_path / "y.tfrecord", {"jpg": b"3", "species": b"owl"})
    features = Features(encoded="jpg", label="species", id="key")
    index = scan([str(tmp_path / name) for name in ("x.tfrecord", "y.tfrecord")], features=features)
    owl, cat, another_owl = index.label.tolist()
    assert owl == another_owl != cat and min(owl, cat) >= 0
    assert index.id[0] == b"5"


def test_a_word_is_the_same_class_in_all_parts_of_a_data_set(tmp_path):
    write_examples(tmp_path / "train", *({**WHOLE, "image/class/label": word} for word in (b"cat", b"owl")))
    write_examples(tmp_path / "test", *({**WHOLE, "image/class/label": word} for word in (b"bat", b"cat")))
    train, test = (scan([str(tmp_path / name)]).label.tolist() for name in ("train", "test"))
    assert train[0] == test[1] and len({*train, *test}) == 3


def test_a_word_is_one_class_however_unicode_writes_its_letters(tmp_path):
    one, other = (unicodedata.normalize(form, "café").encode() for form in ("NFC", "NFD"))
    not_utf_8 = b"caf\xe9"
    words = [one, other, b"cafe", not_utf_8]
    write_examples(tmp_path / "a", *({**WHOLE, "image/class/label": word} for word in words))
    labels = scan([str(tmp_path / "a")]).label.tolist()
    assert one != other and labels[0] == labels[1] and len(set(labels)) == 3


@pytest.mark.parametrize(
    "more", [{"image/category/label": b"bird"}, {"image/role": 1}, {"image/group": b"one"}], ids=str
)
def test_a_feature_of_another_type_is_named(tmp_path, more):
    write_examples(tmp_path / "a", WHOLE | more)
    with pytest.raises(InputError, match=rf"a at byte 12: the feature `{next(iter(more))}` is .* of type"):
        scan([str(tmp_path / "a")])


def test_shards_compressed_by_gzip_are_said_to_be(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a"), "GZIP") as writer:
        writer.write(b"data")
    with pytest.raises(InputError, match=r"a is compressed with gzip\. Unpack it"):
        scan([str(tmp_path / "a")])


def test_a_folder_may_have_any_name(tmp_path):
    folder = tmp_path / "shards [new]*"
    folder.mkdir()
    write_examples(folder / "train-0", WHOLE)
    assert len(opened(folder, tmp_path)) == 1


@pytest.mark.parametrize(
    "features",
    [
        {"image/encoded": b"two"},
        {"image/class/label": 7},
        {"image/encoded": 2, "image/class/label": 7},
        {"picture": b"two", "class": 1},
    ],
    ids=["no label", "no image", "image a number", "other names"],
)
def test_a_record_that_lacks_what_is_needed_is_named_with_what_it_has(tmp_path, features):
    shard = tmp_path / "odd.tfrecord"
    write_examples(shard, WHOLE, features)
    has = ", ".join(sorted(features))
    message = rf"odd\.tfrecord at byte \d+: the record needs .*It has {has}\. Set the names in `features`"
    with pytest.raises(InputError, match=message):
        scan([str(shard)])


@pytest.mark.parametrize("in_one_shard", [True, False])
def test_labels_that_are_words_here_and_numbers_there_are_refused(tmp_path, in_one_shard):
    examples = WHOLE, {"image/encoded": b"two", "image/class/label": b"cat"}
    paths = [str(tmp_path / name) for name in ("a", "b")]
    write_examples(paths[0], *(examples if in_one_shard else examples[:1]))
    write_examples(paths[1], examples[1])
    with pytest.raises(InputError, match=r"image/class/label is a number in some .* word"):
        scan(paths)


@pytest.mark.parametrize(
    ("feature", "what"), [("image/id", "id"), ("image/filename", "id"), ("image/class/label", "class")]
)
def test_a_name_too_long_for_an_index_is_refused_with_its_place(tmp_path, feature, what):
    path = str(tmp_path / "a")
    write_examples(path, {**WHOLE, "image/class/label": b"a"}, {**WHOLE, feature: b"x" * 10**6})
    message = rf"The {what} of {path} at byte \d+ has 1,000,000 bytes; at most 1,024 are"
    with pytest.raises(InputError, match=message):
        scan([path])


def test_an_unknown_role_is_refused(tmp_path):
    write_examples(tmp_path / "a", {**WHOLE, "image/role": b"probe"})
    with pytest.raises(InputError, match="`image/role` is 'probe'; roles are query, gallery, distractor"):
        scan([str(tmp_path / "a")])


def test_a_record_that_is_no_example_is_named(tmp_path):
    shard = tmp_path / "odd.tfrecord"
    with tf.io.TFRecordWriter(str(shard)) as writer:
        writer.write(b"\xff\xff no example")
    with pytest.raises(InputError, match=r"odd\.tfrecord at byte 12"):
        scan([str(shard)])


@pytest.mark.parametrize("data", [png(0), b"x", b"label,file\n1,a.png\n"], ids=["png", "one byte", "csv"])
def test_a_file_of_another_kind_is_refused(tmp_path, data):
    (tmp_path / "other.tfrecord").write_bytes(data)
    with pytest.raises(InputError, match=r"other\.tfrecord at byte \d+: no TFRecord starts here"):
        scan([str(tmp_path / "other.tfrecord")])


def test_shards_without_records_are_refused(tmp_path):
    write_examples(tmp_path / "empty.tfrecord")
    with pytest.raises(InputError, match=r"There are no records in .*empty\.tfrecord"):
        scan([str(tmp_path / "empty.tfrecord")])


def test_patterns_that_no_shard_matches_are_refused(shards, tmp_path):
    with pytest.raises(InputError, match=r"No file in .* matches val-\*, test-\*\."):
        opened(tmp_path, tmp_path, ("val-*", "test-*"))


# Kept for the next time.


def test_the_scan_is_kept_beside_the_shards_and_used_again(shards, tmp_path, monkeypatch):
    first = opened(tmp_path, tmp_path / "cache")
    assert len(list(tmp_path.glob("*.index"))) == 1
    monkeypatch.setattr("tfrank.data.prepare.scan.scan", None)
    assert opened(tmp_path, tmp_path / "cache").fingerprint() == first.fingerprint()


def test_other_patterns_and_other_features_have_other_indexes(shards, tmp_path):
    opened(tmp_path, tmp_path)
    assert len(opened(tmp_path, tmp_path, ("train-a*",))) == 2
    by_category = Features(label="image/category/label")
    with pytest.raises(InputError, match="the record needs the features"):
        opened(tmp_path, tmp_path, features=by_category)


def change_shard(shards):
    write_examples(shards[1], {"image/encoded": b"three!", "image/class/label": 9})


def touch_shard(shards):
    write_examples(shards[1], {"image/encoded": b"three", "image/class/label": 9})
    os.utime(shards[1], (2**32, 2**32))


def add_shard(shards):
    write_examples(shards[1].replace("-b", "-c"), WHOLE)


def damage_index(shards):
    (path,) = pathlib.Path(shards[0]).parent.glob("*.index/label.npy")
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    "change, labels",
    [
        (change_shard, [7, 8, 9]),
        (touch_shard, [7, 8, 9]),
        (add_shard, [7, 8, 7, 7]),
        (damage_index, [7, 8, 7]),
    ],
)
def test_an_index_that_is_out_of_date_is_made_anew_and_said_so(shards, tmp_path, capsys, change, labels):
    opened(tmp_path, tmp_path)
    change(shards)
    assert opened(tmp_path, tmp_path).label.tolist() == labels
    assert "built again" in capsys.readouterr().out


def test_beside_shards_that_may_only_be_read_the_cache_is_used(shards, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    opened(tmp_path, cache)
    assert len(list(cache.glob("*.index"))) == 1 and not list(tmp_path.glob("*.index"))
    monkeypatch.setattr("tfrank.data.prepare.scan.scan", None)
    assert len(opened(tmp_path, cache)) == 3


def test_remote_shards_are_scanned_and_read_with_a_local_index(shards, tmp_path):
    tf.io.gfile.makedirs("ram://foreign")
    for shard in shards:
        tf.io.gfile.copy(shard, f"ram://foreign/{os.path.basename(shard)}", overwrite=True)
    index = opened("ram://foreign", tmp_path)
    assert read_all(index) == read_all(scan(shards))
    assert opened("ram://foreign", tmp_path).fingerprint() == index.fingerprint()


def test_it_is_known_which_records_have_a_box(tmp_path):
    records = [*image_records([1, 2]), dataclasses.replace(*image_records([3]), box=(0.1, 0.2, 0.3, 0.4))]
    written = write_shard(records, str(tmp_path / "a"))
    assert written.has_box.tolist() == scan([str(tmp_path / "a")]).has_box.tolist() == [False, False, True]
