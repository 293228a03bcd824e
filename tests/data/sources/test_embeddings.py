"""Embeddings in .npz and parquet files, as records of vectors."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.data import vectors
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import open_split
from tfrank.data.records import RecordReader, class_text, encoded_image
from tfrank.data.sources.embeddings import read_embeddings

ROWS = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
LABELS = np.repeat([7, 3, 12, 9, 4, 8], 4)


def npz(path, **arrays):
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    return str(path)


def parquet(path, rows=ROWS, **columns):
    pq.write_table(pa.table({"embedding": list(rows), **columns}), path)
    return str(path)


def test_every_row_comes_back_from_the_records_bit_for_bit(tmp_path):
    split = np.where(LABELS > 7, "test", "train")
    path = npz(tmp_path / "some.npz", embeddings=ROWS.astype(np.float64), labels=LABELS, split=split)
    summary = prepare("embeddings", path, str(tmp_path / "records"), processes=1)
    assert summary["splits"]["train"]["classes"] == summary["splits"]["test"]["classes"] == 3
    for split in ("train", "test"):
        index = open_split(str(tmp_path / "records"), split)
        with RecordReader(index) as reader:
            for number, (name, label) in enumerate(zip(index.id, index.label)):
                (record,) = reader.read([number])
                row = int(name)
                np.testing.assert_array_equal(vectors.decode(encoded_image(record)), ROWS[row])
                assert label == LABELS[row] and class_text(record) == str(LABELS[row])
                np.testing.assert_array_equal(vectors.VectorLoader(3).test(record), ROWS[row])


def test_an_npz_and_parquet_files_of_the_same_rows_give_the_same_images(tmp_path):
    names, words = [f"n{row}" for row in range(24)], np.char.add("class ", LABELS.astype(str))
    one = list(read_embeddings(npz(tmp_path / "a.npz", embeddings=ROWS, labels=words, ids=names)))
    assert one == list(read_embeddings(parquet(tmp_path / "a.parquet", label=words.tolist(), id=names)))
    folder = tmp_path / "folder"
    folder.mkdir()
    for part in (0, 1):
        rows = slice(12 * part, 12 * (part + 1))
        parquet(folder / f"{part}.parquet", ROWS[rows], label=words[rows].tolist(), id=names[rows])
    assert one == list(read_embeddings(str(folder)))


def test_of_a_search_index_the_current_version_is_read_alone(tmp_path):
    for part in ("old", "new"):
        parquet(tmp_path / f"{part}.parquet", label=LABELS.tolist(), id=[f"{part}{row}" for row in range(24)])
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "2.json").write_text(json.dumps({"parts": ["new.parquet"]}))
    (tmp_path / "CURRENT").write_text("2\n")
    assert {image.id[:3] for image in read_embeddings(str(tmp_path))} == {"new"}
    # What people said of its photos since counts, also that one is of no class.
    (tmp_path / "labels.csv").write_text("id,label\nnew0,owl\nnew1,\ngone,wren\n")
    images = {image.id: image.text for image in read_embeddings(str(tmp_path))}
    assert images["new0"] == "owl" and "new1" not in images and images["new2"] == "7" and len(images) == 23


@pytest.mark.parametrize(
    "content", [b"", b"new0,owl\n", b"id;label\nnew0;owl\n", b"id,label\nnew0\n", b"id,label\n\xe9,a\n"]
)
def test_damaged_labels_of_an_index_are_named(tmp_path, content):
    parquet(tmp_path / "new.parquet", label=LABELS.tolist(), id=[f"new{row}" for row in range(24)])
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "2.json").write_text(json.dumps({"parts": ["new.parquet"]}))
    (tmp_path / "CURRENT").write_text("2\n")
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"labels\.csv is damaged"):
        list(read_embeddings(str(tmp_path)))


def test_embeddings_that_are_still_being_made_are_refused(tmp_path):
    parquet(tmp_path / "embeddings-000001.parquet", label=LABELS.tolist())
    (tmp_path / ".lists").mkdir()
    (tmp_path / ".lists" / "embeddings-000002.parquet").touch()
    with pytest.raises(InputError, match="scale embed has not ended there"):
        list(read_embeddings(str(tmp_path)))


def test_classes_are_divided_where_there_is_no_split_and_rows_without_a_label_are_left_out(tmp_path, capsys):
    labels = LABELS.astype(object)
    labels[:2] = ["", None]
    path = parquet(tmp_path / "a.parquet", label=[label and str(label) for label in labels])
    images = list(read_embeddings(path))
    assert [image.id for image in images] == [str(row) for row in range(2, 24)]
    by_split = {split: {one.label for one in images if one.split == split} for split in ("train", "test")}
    assert {split: len(classes) for split, classes in by_split.items()} == {"train": 3, "test": 3}
    assert not by_split["train"] & by_split["test"]
    printed = capsys.readouterr().out
    assert "2 rows of" in printed and "3 of 6 classes, drawn at random, are tested on" in printed


@pytest.mark.parametrize(
    "labels",
    [LABELS.astype(float), LABELS.astype(str).astype("S"), LABELS[:, None], LABELS.astype("uint8")],
    ids=["floats of pandas", "bytes", "a column", "bytes of integers"],
)
def test_labels_are_the_same_classes_in_every_form(tmp_path, labels):
    plain = list(read_embeddings(npz(tmp_path / "a.npz", embeddings=ROWS, labels=LABELS)))
    assert (
        list(read_embeddings(npz(tmp_path / "b.NPZ", embeddings=ROWS, labels=labels, notes=[None]))) == plain
    )


def test_missing_labels_among_floats_have_no_class_and_the_word_none_is_one(tmp_path):
    labels = LABELS.astype(float)
    labels[:3] = np.nan, -1.0, -1
    images = list(read_embeddings(npz(tmp_path / "a.npz", embeddings=ROWS, labels=labels)))
    assert len(images) == 21 and {image.text for image in images} == set(LABELS.astype(str))
    words = np.where(LABELS == 7, "None", LABELS.astype(str))
    images = list(read_embeddings(npz(tmp_path / "b.npz", embeddings=ROWS, labels=words)))
    assert len(images) == 24 and "None" in {image.text for image in images}


BAD = ROWS.copy()
BAD[2, 1], BAD[5] = np.nan, 0


def test_rows_that_are_not_finite_or_zero_are_skipped_by_name(tmp_path):
    path = npz(tmp_path / "a.npz", embeddings=BAD, labels=LABELS)
    prepare("embeddings", path, str(tmp_path / "records"), processes=1, max_skipped=0.1)
    skipped = (tmp_path / "records" / "skipped.csv").read_text()
    assert ",2,a number is not finite" in skipped and ",5,its norm is below 1e-06" in skipped


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"embeddings": ROWS}, "it has no labels"),
        ({"labels": LABELS}, "it has no embeddings"),
        ({"embeddings": ROWS, "labels": LABELS[:5]}, "there are 5 labels, and 24 embeddings"),
        ({"embeddings": ROWS[0], "labels": LABELS}, r"embeddings are float32 of shape \[3\]"),
        ({"embeddings": ROWS.astype(complex), "labels": LABELS}, "embeddings are complex128"),
        (
            {"embeddings": ROWS, "labels": LABELS, "label": LABELS},
            "two of a kind among embeddings, label, lab",
        ),
        ({"embeddings": ROWS, "labels": LABELS.astype(object)}, r"make text of it, np.array\(labels"),
        (
            {"embeddings": ROWS, "labels": LABELS, "role": np.full(24, "quarry")},
            "row 0 has the role 'quarry'",
        ),
        (
            {"embeddings": ROWS, "labels": LABELS, "role": np.full(24, "query")},
            "row 0 has the role 'query' and no split",
        ),
    ],
)
def test_a_file_that_does_not_fit_says_what_it_lacks(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        list(read_embeddings(npz(tmp_path / "a.npz", **arrays)))


def test_other_files_are_named_in_one_line(tmp_path):
    (tmp_path / "a.npz").write_text("x")
    (tmp_path / "a.parquet").write_text("x")
    (tmp_path / "empty").mkdir()
    ragged = parquet(tmp_path / "ragged.parquet", [[1.0, 2.0], [1.0]], label=["a", "b"])
    parquet(tmp_path / "empty" / "1.parquet", ROWS[:4], label=["a"] * 4)
    parquet(tmp_path / "empty" / "2.parquet", ROWS[:4, :2], label=["a"] * 4)
    np.save(tmp_path / "a.npy", ROWS)
    struct = pa.table({"embedding": [{"x": 1.0}], "label": ["a"]})
    pq.write_table(struct, tmp_path / "struct.parquet")
    for path, message in [
        (tmp_path / "a.npy", "ends neither in .npz nor in .parquet"),
        (tmp_path / "struct.parquet", "and not a list of numbers"),
        (tmp_path / "a.npz", "it is no .npz, or is cut off"),
        (tmp_path / "a.parquet", "cannot be read"),
        (tmp_path / "nothing.npz", "There is no file"),
        (ragged, "rows have embeddings of 1 and 2 numbers"),
        (tmp_path / "empty", "embeddings of 2 and 3 dimensions"),
        (tmp_path, "cannot be read"),
    ]:
        with pytest.raises(InputError, match=message) as found:
            list(read_embeddings(str(path)))
        assert "\n" not in str(found.value)


def test_a_record_of_other_dimensions_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", embeddings=ROWS, labels=LABELS)
    prepare("embeddings", path, str(tmp_path / "records"), processes=1)
    with RecordReader(open_split(str(tmp_path / "records"), "train")) as reader:
        (record,) = reader.read([0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="the record has no vector of 4 dimensions"):
        vectors.VectorLoader(4).train(record, tf.constant([0, 0]))
