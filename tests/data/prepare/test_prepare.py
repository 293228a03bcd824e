"""Data sets to records: whole, interrupted, with bad images, and from a command line."""

import csv
import errno
import io
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import tracemalloc
import unicodedata
import zipfile

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from tests.programs import ROOT
from tfrank.common.checks import InputError
from tfrank.data.prepare import preparation
from tfrank.data.prepare.__main__ import next_command, table
from tfrank.data.prepare.listing import list_images
from tfrank.data.prepare.preparation import open_split, prepare, prepared
from tfrank.data.records import BOX_SIDES, RecordReader
from tfrank.data.sources.image import Count, Source, SourceImage


def picture(number, size=(12, 8)):
    """The bytes of a PNG of random pixels."""
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, [size[1], size[0], 3], np.uint8)
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write_images(folder, classes=6, images=5):
    """A folder of folders; a class has `images` images, the first one more."""
    for c in range(classes):
        place = folder / f"class {c}"
        place.mkdir(parents=True)
        for number in range(images + (c == 0)):
            (place / f"{number}.png").write_bytes(picture(100 * c + number))
    return folder


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images")


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "records")


def prepare_folder(images, output, **options):
    return prepare("folder", str(images), output, options={"test_share": 0.5}, **options)


def files_of(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.name != ".lock"}


def skipped_in(folder):
    with open(os.path.join(folder, "skipped.csv"), errors="surrogateescape", newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


# Whole.


def test_all_images_of_a_folder_come_out_byte_for_byte(images, output):
    summary = prepare_folder(images, output, num_shards=2)
    found = {}
    for split in ("train", "test"):
        index = open_split(output, split)
        assert len(index.shards) == 2
        assert summary["splits"][split]["images"] == len(index)
        assert summary["splits"][split]["classes"] == index.num_classes == 3
        for image_id, data in zip(index.id, RecordReader(index).read(range(len(index)))):
            found[image_id.decode()] = data
    wanted = {str(path.relative_to(images)): path.read_bytes() for path in images.rglob("*.png")}
    assert found.keys() == wanted.keys()
    assert all(wanted[name] in data for name, data in found.items())


def test_only_records_indexes_and_what_was_skipped_are_left(images, output):
    prepare_folder(images, output, num_shards=1)
    shards = {f"{split}-00000-of-00001.tfrecord" for split in ("train", "test")}
    assert set(files_of(output)) == shards | {
        "train.index.npz",
        "test.index.npz",
        "skipped.csv",
        "prepared.json",
    }


def test_boxes_are_kept_as_shares_of_the_image(images, tmp_path, output):
    manifest = tmp_path / "list.csv"
    lines = [f"images/class {c}/{n}.png,{c},train,3,1,6,5" for c in range(4) for n in range(2)]
    manifest.write_text("\n".join(["path,label,split,x,y,w,h", *lines]))
    prepare("csv", str(manifest), output)
    (data,) = RecordReader(open_split(output, "train")).read([0])
    features = tf.train.Example.FromString(data).features.feature
    box = [features[f"image/object/bbox/{side}"].float_list.value[0] for side in BOX_SIDES]
    assert box == [0.25, 0.125, 0.75, 0.75]


def test_the_same_source_gives_the_same_files(images, tmp_path, output):
    prepare_folder(images, output)
    prepare_folder(images, str(tmp_path / "again"))
    assert files_of(output) == files_of(tmp_path / "again")


def test_a_second_time_nothing_is_written(images, output):
    first = prepare_folder(images, output)
    before = {path: os.stat(os.path.join(output, path)).st_mtime_ns for path in files_of(output)}
    assert prepare_folder(images, output) == first
    assert {path: os.stat(os.path.join(output, path)).st_mtime_ns for path in files_of(output)} == before


def test_records_of_something_else_are_not_overwritten(images, output):
    prepare_folder(images, output)
    with pytest.raises(
        InputError, match=r"records of folder with options .*0\.5.*, not of folder with .*0\.2"
    ):
        prepare("folder", str(images), output, options={"test_share": 0.2})


def test_what_else_is_in_the_folder_stays(images, tmp_path):
    (tmp_path / "notes.tmp").write_text("mine")
    (tmp_path / "unpacked").mkdir()
    prepare_folder(images, str(tmp_path))
    assert (tmp_path / "notes.tmp").read_text() == "mine" and (tmp_path / "unpacked").exists()


def test_the_right_archive_after_a_wrong_one_is_read(images, tmp_path, output):
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme.txt", "nothing here")
    with pytest.raises(InputError, match="has no images"):
        prepare_folder(archive, output)
    with zipfile.ZipFile(archive, "w") as file:
        for path in images.rglob("*.png"):
            file.write(path, path.relative_to(images))
    assert prepare_folder(archive, output)["splits"]["train"]["images"] > 0


def test_a_lost_index_is_made_anew_from_all_shards_of_the_split_or_not_at_all(images, output):
    prepare_folder(images, output)
    wanted = open_split(output, "train").fingerprint()
    lost = pathlib.Path(output, "train.index.npz")
    lost.unlink()
    (pathlib.Path(output) / "train-extra-00000-of-00001.tfrecord").write_bytes(b"of another split")
    assert open_split(output, "train").fingerprint() == wanted
    lost.unlink()
    pathlib.Path(output, "train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(InputError, match=r"train-00002-of-00004\.tfrecord"):
        open_split(output, "train")


def test_records_copied_to_a_remote_store_are_opened_there(images, output):
    prepare_folder(images, output)
    tf.io.gfile.makedirs("ram://prepared")
    for name in files_of(output):
        tf.io.gfile.copy(os.path.join(output, name), f"ram://prepared/{name}", overwrite=True)
    there, here = open_split("ram://prepared", "train"), open_split(output, "train")
    assert RecordReader(there).read([2, 0]) == RecordReader(here).read([2, 0])
    with pytest.raises(InputError, match="copy them to ram://elsewhere afterwards"):
        prepare_folder(images, "ram://elsewhere")


def test_an_archive_is_unpacked_meanwhile(images, tmp_path, output):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in images.rglob("*.png"):
            archive.write(path, path.relative_to(images))
    prepare_folder(tmp_path / "images.zip", output)
    prepare_folder(images, str(tmp_path / "from_folder"))
    assert (
        open_split(output, "train").fingerprint()
        == open_split(str(tmp_path / "from_folder"), "train").fingerprint()
    )


def test_the_table_has_classes_images_and_what_was_skipped(images, output):
    (images / "class 1" / "bad.png").write_bytes(b"")
    lines = table(prepare_folder(images, output, max_skipped=0.1)).splitlines()
    assert lines[0].split() == ["classes", "images", "a", "class:", "least", "mean", "most", "skipped"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert sum(int(row[1]) for row in rows.values()) == 31 and sum(int(row[-1]) for row in rows.values()) == 1


def test_the_table_has_queries_and_gallery_and_no_classes_where_there_are_none(images, output, monkeypatch):
    def image(number, **fields):
        path = f"class 0/{number}.png"
        return listed(path, split="test", label=-1, text="", **fields)

    roles = ["query", "query", "gallery", "gallery", "gallery", "distractor"]
    in_source(monkeypatch, *(image(number, role=role) for number, role in enumerate(roles)))
    lines = table(prepare("folder", str(images), output)).splitlines()
    assert lines[1].split() == ["test", "-", "6", "-", "-", "-", "0"]
    assert lines[2] == "test: 2 queries, 3 in the gallery, 1 distractors"
    assert len(lines) == 3 and open_split(output, "test").num_classes == 0


@pytest.mark.parametrize("split, hint", [("tset", 'Did you mean "test"'), ("val", "It has test, train")])
def test_a_split_that_is_not_there_is_refused_with_those_that_are(images, output, split, hint):
    prepare_folder(images, output)
    with pytest.raises(InputError, match=hint):
        open_split(output, split)


def test_a_folder_without_records_says_how_to_make_some(tmp_path):
    with pytest.raises(InputError, match=r"no records of a split 'train'.*python -m tfrank\.data\.prepare"):
        open_split(str(tmp_path), "train")


def test_an_option_that_the_source_needs_is_asked_for(images, output):
    with pytest.raises(
        InputError, match="'omniglot' takes the options train, test, as in --option=train=A,B"
    ):
        prepare("omniglot", str(images), output)


def test_an_option_that_the_source_does_not_have_is_refused(images, output):
    with pytest.raises(InputError, match=r"no option 'test_shrae'.*Did you mean \"test_share\""):
        prepare("folder", str(images), output, options={"test_shrae": 0.5})


def test_a_count_that_is_not_the_official_one_is_noted(images, output, monkeypatch, capsys):
    sources = preparation.SOURCES
    official = sources["folder"]._replace(counts={"train": Count(3, 99)}, remark="Papers print 98.")
    monkeypatch.setitem(sources, "folder", official)
    prepare_folder(images, output)
    out = capsys.readouterr().out
    assert "Note: train" in out and "99" in out and "Papers print 98." in out


# Bad images.

BAD = {
    "empty.png": b"",
    "text.jpg": b"not an image at all",
    "cut.png": picture(1)[:60],
    os.fsdecode(b"caf\xe9.png"): picture(2)[:60],
}


def add_bad(images):
    for name, data in BAD.items():
        with open(os.path.join(images, "class 1", name), "wb") as file:
            file.write(data)


def test_bad_images_are_left_out_and_listed_with_the_reason(images, output):
    add_bad(images)
    summary = prepare_folder(images, output, max_skipped=0.2)
    assert {name: reason != "" for _, name, reason in skipped_in(output)} == {
        f"class 1/{name}": True for name in BAD
    }
    assert sum(row["skipped"] for row in summary["splits"].values()) == len(BAD)
    assert sum(row["images"] for row in summary["splits"].values()) == 31


def test_more_bad_images_than_may_be_are_refused_by_name_and_nothing_is_taken_for_done(images, output):
    add_bad(images)
    message = r"4 of 35 images cannot be used, and 2 may be .* --max_skipped=0\.115; .* lists them: class 1/"
    with pytest.raises(InputError, match=message):
        prepare_folder(images, output, max_skipped=0.05)
    assert prepared(output) is None and skipped_in(output)
    prepare_folder(images, output, max_skipped=0.115)
    assert len(skipped_in(output)) == len(BAD)


def test_one_bad_image_of_a_few_may_be_unless_none_is_allowed(images, output):
    (images / "class 1" / "bad.png").write_bytes(b"")
    with pytest.raises(InputError, match="1 of 32 images cannot be used, and 0 may be"):
        prepare_folder(images, output, max_skipped=0)
    assert len(prepare_folder(images, output)["splits"]) == 2


@pytest.mark.parametrize("bad, total", [(1, 3), (4, 35), (29, 100), (33, 1000), (341, 9999)])
def test_the_number_that_is_named_lets_the_bad_images_through_and_a_lesser_one_does_not(bad, total):
    enough = preparation._enough(bad, total)
    assert math.ceil(enough * total) >= bad > (enough - 0.0011) * total


def test_the_same_command_with_more_allowed_looks_at_no_image_again(images, output, monkeypatch):
    add_bad(images)
    with pytest.raises(InputError, match="what is done is kept"):
        prepare_folder(images, output, max_skipped=0)
    monkeypatch.setattr(preparation.shards, "write", None)
    prepare_folder(images, output, max_skipped=0.115)
    assert len(skipped_in(output)) == len(BAD)


def test_paths_that_lead_nowhere_stop_before_any_image_is_read_and_say_where_it_looked(
    images, output, monkeypatch
):
    in_source(monkeypatch, listed("class 0/0.png"), *(listed(f"x/{number}.png") for number in range(57)))
    monkeypatch.setattr(preparation.shards, "write", None)
    with pytest.raises(InputError) as error:
        prepare("folder", str(images), output)
    assert str(error.value) == (
        "57 of 58 images are not where the list says. The first, x/0.png, was looked for at"
        f" {images}/x/0.png, since paths are relative to {images}. Correct the paths, or leave those images"
        " out: `python -m tfrank.data.prepare` --max_skipped=0.983."
    )


@pytest.mark.parametrize("fewer", [0.0, 0.002])
def test_the_number_named_for_missing_files_counts_repeated_ones_too_and_will_do(
    images, output, monkeypatch, fewer
):
    there = [listed(f"class {c}/{n}.png") for c in range(6) for n in range(5)]
    gone = [listed(f"images/{n}.jpg") for n in range(20)]
    repeated = [listed("class 0/1.png", id="class 0/0.png"), listed("images/x.jpg", id="images/0.jpg")]
    source = Source(lambda folder: iter([*there, *gone, *repeated]), missing="Of 52 all but 30 are gone.")
    monkeypatch.setitem(preparation.SOURCES, "folder", source)
    message = r"21 of 52 images .* --max_skipped=0\.424\. Of 52 all but 30 are gone\.$"
    with pytest.raises(InputError, match=message):
        prepare("folder", str(images), output)
    if fewer:
        with pytest.raises(InputError, match=r"--max_skipped=0\.424"):
            prepare("folder", str(images), output, max_skipped=21 / 52 - fewer)
    else:
        assert prepare("folder", str(images), output, max_skipped=0.424)["splits"]["train"]["skipped"] == 22


def test_paths_with_backslashes_are_told_of(images, output, monkeypatch):
    in_source(monkeypatch, listed("class 0\\0.png"))
    with pytest.raises(InputError, match=r"Correct the paths, with / in place of \\\.$"):
        prepare("folder", str(images), output, max_skipped=0)


def in_source(monkeypatch, *listed):
    """Makes a source of these images."""
    monkeypatch.setitem(preparation.SOURCES, "folder", Source(lambda folder: iter(listed)))


def listed(path, **fields):
    return SourceImage(**{"split": "train", "path": path, "label": 1, "text": "a", "id": path, **fields})


def test_a_missing_file_and_a_repeated_id_are_left_out(images, output, monkeypatch):
    first, second = "class 0/0.png", "class 0/1.png"
    os.mkfifo(images / "pipe.png")
    (images / "endless.png").symlink_to("/dev/zero")
    in_source(
        monkeypatch,
        listed(first),
        listed("gone.png"),
        listed(second, id=first),
        listed(second),
        listed(first),
        listed("pipe.png"),
        listed("endless.png"),
        listed("class 0"),
    )
    prepare("folder", str(images), output, max_skipped=1)
    assert [row[1:] for row in skipped_in(output)] == [
        ("class 0", "cannot be read (Is a directory)"),
        (first, f"another image has the id {first!r}"),
        (second, f"another image has the id {first!r}"),
        ("endless.png", "cannot be read (it is a pipe or a device)"),
        ("gone.png", "cannot be read (No such file or directory)"),
        ("pipe.png", "cannot be read (it is a pipe or a device)"),
    ]
    assert sorted(open_split(output, "train").id.tolist()) == [first.encode(), second.encode()]


def test_a_box_outside_the_image_is_a_reason(images, output, monkeypatch):
    in_source(monkeypatch, listed("class 0/0.png", box=(20, 0, 5, 5)), listed("class 0/1.png"))
    prepare("folder", str(images), output, max_skipped=1)
    assert "is not in the image of 12 x 8 pixels" in skipped_in(output)[0][2]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_class_in_train_and_in_test_is_refused_unless_allowed(images, output, monkeypatch, allowed):
    in_source(monkeypatch, listed("class 0/0.png"), listed("class 0/1.png", split="test"))
    if allowed:
        prepare("folder", str(images), output, allow_common_classes=True)
        assert len(open_split(output, "test")) == 1
    else:
        with pytest.raises(InputError, match=r"Both in train and in test: 1 class, 'a'\."):
            prepare("folder", str(images), output)


NFC, NFD = (unicodedata.normalize(form, "café.png") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    "train, test",
    [("p/0.png", "p/0.png"), ("p/0.png", "./p/0.png"), ("p/0.png", "q/..//p/0.png"), (NFC, NFD)],
    ids=["equal", "dot", "dots", "letters"],
)
def test_an_image_in_train_and_in_test_is_refused_however_its_path_is_written(tmp_path, output, train, test):
    rows = [f"{c}{n}.png,{c},{'train' if c < 3 else 'test'}" for c in range(6) for n in range(2)]
    manifest = tmp_path / "list.csv"
    manifest.write_text("\n".join(["path,label,split", *rows, f"{train},0,train", f"{test},5,test"]))
    message = f"Both in train and in test: 1 image, such as {train!r}"
    with pytest.raises(InputError, match=re.escape(message)):
        prepare("csv", str(manifest), output, allow_common_classes=True)


def test_a_split_of_which_nothing_is_left_is_refused(images, output, monkeypatch):
    in_source(monkeypatch, listed("class 0/0.png"), listed("gone.png", split="test", label=2))
    with pytest.raises(InputError, match="None of the images of 'test' can be used"):
        prepare("folder", str(images), output, max_skipped=1)


def test_a_source_without_images_is_refused(images, output, monkeypatch):
    in_source(monkeypatch)
    with pytest.raises(InputError, match="The source has no images"):
        prepare("folder", str(images), output)


def test_listing_takes_a_few_bytes_an_image(tmp_path):
    """Its line goes to disk; where that begins and a hash of the id are kept."""
    images = (listed(f"folder/{number}.jpg", label=number % 100) for number in range(50_000))
    tracemalloc.start()
    try:
        listing = list_images(images, str(tmp_path))["train"]
        assert len(listing) == 50_000 and tracemalloc.get_traced_memory()[1] < 60 * 50_000
    finally:
        tracemalloc.stop()


# What a person is told.


def test_a_photo_in_train_and_in_test_or_in_two_classes_is_told_and_listed(images, output, capsys):
    prepare_folder(images, output)
    train, test = ([name.decode() for name in open_split(output, split).id] for split in ("train", "test"))
    assert not os.path.exists(os.path.join(output, "duplicates.csv"))
    copies = {
        os.path.dirname(test[0]): "test",
        os.path.dirname(train[-1]): "train",
        os.path.dirname(train[0]): 0,
    }
    for folder in copies:
        (images / folder / "z.png").write_bytes((images / train[0]).read_bytes())
    capsys.readouterr()
    again = f"{output} again"
    prepare_folder(images, again)
    said = [line for line in capsys.readouterr().out.splitlines() if "byte for byte" in line]
    assert said[0].startswith(
        f"Warning: 1 photo is both in train and in test, byte for byte: {os.path.dirname(test[0])}/z.png is"
        f" {train[0]}. The test asks for what was trained on. Delete one of each, then the records"
    )
    assert said[1].startswith("Warning: 1 photo is both in two classes, byte for byte: ")
    assert said[2] == "Note: 1 photo is there again in the same class, byte for byte."
    with open(os.path.join(again, "duplicates.csv"), newline="") as file:
        assert [row["image"] for row in csv.DictReader(file)] == [
            f"{name}/z.png" for name in list(copies)[:2]
        ]


def test_the_same_photo_with_another_box_is_not_a_copy(images, tmp_path, output, capsys):
    lines = [f"images/class {c}/{n}.png,{c},{n},0,5,5" for c in range(4) for n in range(2)]
    for c in range(1, 4):
        (images / f"class {c}" / "0.png").write_bytes((images / "class 0" / "0.png").read_bytes())
    manifest = tmp_path / "list.csv"
    manifest.write_text(
        "\n".join(["path,label,x,y,w,h", *(line for line in lines if "0.png" not in line[-9:])])
    )
    prepare("csv", str(manifest), output)
    assert "Warning: " in capsys.readouterr().out
    boxes = [f"images/class {c}/{n}.png,{c},{n + c},0,5,5" for c in range(4) for n in range(2)]
    manifest.write_text("\n".join(["path,label,x,y,w,h", *boxes]))
    prepare("csv", str(manifest), f"{output} again")
    assert "Warning: " not in capsys.readouterr().out


@pytest.mark.parametrize("classes, images, of", [(3, 4, "3, of 13 images"), (1, 1, "1, of 2 images")])
def test_fewer_than_four_classes_are_refused_before_anything_is_read(tmp_path, output, classes, images, of):
    folder = write_images(tmp_path / "few", classes=classes, images=images)
    with pytest.raises(InputError, match=rf"It takes 4 classes, two to train on and .* has {of}\. Add"):
        prepare("folder", str(folder), output)
    assert not list(pathlib.Path(output).glob("*.tfrecord"))


def test_one_image_of_each_class_is_too_few(tmp_path, output):
    folder = write_images(tmp_path / "few", classes=4, images=1)
    (folder / "class 0" / "1.png").unlink()
    with pytest.raises(InputError, match=r"The 2 classes of test in .* have one image each"):
        prepare("folder", str(folder), output)


def test_a_photo_that_changes_while_it_is_read_is_left_out(images, output, monkeypatch):
    changing, fstat = images / "class 0" / "0.png", os.fstat

    def write_meanwhile(number):
        status = fstat(number)
        if os.path.samestat(status, os.stat(changing)):
            os.utime(changing, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return status

    monkeypatch.setattr(os, "fstat", write_meanwhile)
    prepare_folder(images, output)
    assert skipped_in(output)[0][1:] == ("class 0/0.png", "changed while it was read")


def test_a_full_disk_is_told_in_one_line_and_loses_nothing(images, output, monkeypatch):
    save, saved = np.save, []

    def fill(file, array):
        if len(saved) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        saved.append(file.name)
        save(file, array)

    monkeypatch.setattr(np, "save", fill)
    with pytest.raises(
        InputError, match=r"^The disk of .* is full\. Make room and give the same command again"
    ):
        prepare_folder(images, output)
    monkeypatch.undo()
    done = list(pathlib.Path(output, ".unfinished").glob("*.done.json"))
    times = {path: path.stat().st_mtime_ns for path in done}
    assert len(done) == 3
    monkeypatch.setattr(preparation.shutil, "rmtree", lambda *_, **__: None)
    prepare_folder(images, output)
    assert times == {path: path.stat().st_mtime_ns for path in done}


def test_own_photos_are_shrunk_with_their_boxes_and_published_ones_are_not(tmp_path, output):
    large = picture(0, (1200, 900))
    lines = []
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(large if number == 0 else picture(number))
        lines.append(f"{number}.png,{number // 2},train" + (",300,90,600,450" if number == 0 else ",,,,"))
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split,x,y,w,h", *lines]))
    summary = prepare("csv", str(tmp_path / "list.csv"), output)
    assert summary["images"] == {"kept": 7, "shrunk": 1}
    assert (summary["shorter_side"], summary["jpeg_quality"]) == (512, 95)
    index = open_split(output, "train")
    (data,) = RecordReader(index).read([index.id.tolist().index(b"0.png")])
    features = tf.train.Example.FromString(data).features.feature
    box = [features[f"image/object/bbox/{side}"].float_list.value[0] for side in BOX_SIDES]
    np.testing.assert_allclose(box, [0.25, 0.1, 0.75, 0.6], rtol=1e-6)
    assert tf.io.decode_image(features["image/encoded"].bytes_list.value[0]).shape == (512, 683, 3)
    with pytest.raises(
        InputError, match=r"'shorter_side': 512.*, not of csv with options .*'shorter_side': 0"
    ):
        prepare("csv", str(tmp_path / "list.csv"), output, options={"shorter_side": 0})
    kept = prepare("csv", str(tmp_path / "list.csv"), f"{output} kept", options={"shorter_side": 0})
    assert kept["images"] == {"kept": 8}


def test_a_published_data_set_keeps_its_bytes(tmp_path, output, monkeypatch):
    (tmp_path / "large.png").write_bytes(picture(0, (1200, 900)))
    in_source(monkeypatch, listed("large.png"))
    assert prepare("folder", str(tmp_path), output)["images"] == {"kept": 1}


@pytest.mark.parametrize(
    "source, splits, wanted",
    [
        (
            "folder",
            ["train", "test"],
            "train_main.py --config=configs/own_images.py --config.data.records='my p'",
        ),
        ("csv", ["test"], "eval_main.py --workdir=RUN --config.data.test_records='my p'"),
        ("cub", ["train", "test"], "train_main.py --config=configs/cub.py --config.data.records='my p'"),
        (
            "ijb_c",
            ["test"],
            "eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records='my p'",
        ),
    ],
)
def test_the_next_command_is_of_the_source(source, splits, wanted):
    summary = {"splits": {split: {"classes": 4} for split in splits}}
    assert next_command(source, "my p", summary) == f"python {wanted}"
    config = re.search(r"configs/\w+\.py", wanted)
    assert not config or (pathlib.Path(ROOT) / config[0]).exists()


# Interrupted, and in several processes.


def test_an_interrupted_preparation_goes_on_with_the_shards_that_are_missing(
    images, output, tmp_path, monkeypatch
):
    prepare_folder(images, str(tmp_path / "whole"), num_shards=4)
    write, written = preparation.shards.write, []

    def write_three(task, counts):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(task.path)
        return write(task, counts)

    monkeypatch.setattr(preparation.shards, "write", write_three)
    with pytest.raises(KeyboardInterrupt):
        prepare_folder(images, output, num_shards=4)
    assert prepared(output) is None
    first = list(written)
    monkeypatch.setattr(
        preparation.shards, "write", lambda task, counts: written.append(task.path) or write(task, counts)
    )
    prepare_folder(images, output, num_shards=4)
    assert len(written) == 8 and not set(first) & set(written[3:])
    assert files_of(output) == files_of(tmp_path / "whole")


def test_a_shard_of_other_images_is_written_again(images, output, monkeypatch):
    monkeypatch.setattr(preparation, "_join", None)
    with pytest.raises(TypeError):
        prepare_folder(images, output)
    monkeypatch.undo()
    (images / "class 0" / "new.png").write_bytes(picture(77))
    (images / "class 1" / "1.png").write_bytes(picture(78))
    summary = prepare_folder(images, output)
    assert sum(row["images"] for row in summary["splits"].values()) == 32
    prepare_folder(images, str(images.parent / "at once"))
    assert files_of(output) == files_of(images.parent / "at once")


COMMAND = [sys.executable, "-m", "tfrank.data.prepare"]


def command(images, output, *flags):
    arguments = [*COMMAND, "--source=folder", f"--source_dir={images}", f"--output_dir={output}", *flags]
    return {"args": arguments, "cwd": ROOT, "text": True}


def run(images, output, *flags):
    return subprocess.run(**command(images, output, *flags), capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Enough images for several processes."""
    return write_images(tmp_path_factory.mktemp("many") / "images", classes=70, images=90)


@pytest.fixture(scope="module")
def whole(many, tmp_path_factory):
    """What one process writes of them."""
    output = tmp_path_factory.mktemp("whole")
    done = run(many, output, "--processes=1", "--shards=40")
    assert done.returncode == 0, done.stderr
    assert "a class: least" in done.stdout and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Reading {many}"
    assert lines[-2:] == [
        f"Records: {output}",
        f"Next: python train_main.py --config=configs/own_images.py --config.data.records={output}",
    ]
    return files_of(output)


@pytest.mark.slow
def test_several_processes_write_what_one_does(many, whole, tmp_path):
    done = run(many, tmp_path, "--processes=2", "--shards=40")
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_killed_while_writing_it_goes_on_and_ends_with_the_same_files(many, whole, tmp_path, signal_number):
    output = tmp_path / "killed"
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(**command(many, output, "--shards=40", "--processes=2"), **pipes)
    while len(list(output.glob(".unfinished/*.done.json"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=60)
    if signal_number == signal.SIGINT:
        assert (process.returncode, errors.strip().splitlines()[-1]) == (130, "Interrupted.")
    done = len(list(output.glob(".unfinished/*.done.json")))
    assert 3 <= done < 80 and prepared(str(output)) is None
    assert run(many, output, "--shards=40", "--processes=2").returncode == 0
    assert files_of(output) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.5, 2.0])
def test_interrupted_while_workers_start_it_says_so_in_one_line(many, tmp_path, seconds):
    """By Ctrl-C, which all processes of a terminal get."""
    process = subprocess.Popen(
        **command(many, tmp_path / "out", "--shards=40", "--processes=2"),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # What a shell starts in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while "images listed" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "Interrupted.")


def test_two_preparations_of_one_folder_do_not_meet(images, output):
    with preparation.locked(output), pytest.raises(InputError, match="Another process is at work"):
        prepare_folder(images, output)


def test_what_is_prepared_says_so_in_json(images, output):
    summary = prepare_folder(images, output)
    assert json.loads(pathlib.Path(output, "prepared.json").read_text()) == summary == prepared(output)
    pathlib.Path(output, "prepared.json").write_text("{")
    with pytest.raises(InputError, match=r"prepared\.json is damaged"):
        prepared(output)


@pytest.mark.parametrize(("field", "what"), [("id", "id"), ("text", "class")])
def test_a_name_too_long_for_an_index_is_refused_before_any_image_is_read(tmp_path, field, what):
    image = SourceImage(
        **{"split": "train", "path": "a.png", "label": 0, "text": "a", "id": "a", field: "x" * 10**7}
    )
    with pytest.raises(
        InputError, match=rf"The {what} of the image a\.png has 10,000,000 bytes, and may have 1,024"
    ):
        list_images([image], str(tmp_path))
