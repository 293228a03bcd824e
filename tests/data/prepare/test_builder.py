"""Data sets to records: options, archives, and bad images."""

import math
import os
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.data.prepare import files_of, in_source, listed, picture, prepare_folder, skipped_in
from tfrank.common.checks import InputError
from tfrank.data.prepare import builder
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import BOX_SIDES, RecordReader
from tfrank.data.sources.image import Count


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
    indexes = {"train.index", "test.index"}
    assert set(os.listdir(output)) - {".lock"} == shards | indexes | {"skipped.csv", "prepared.json"}


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


def test_a_table_that_was_corrected_is_not_taken_for_done(images, tmp_path, output):
    paths = [path for path in sorted(images.rglob("*")) if path.suffix in (".jpg", ".png")]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(["path,label", *(f"{path},{path.parent.name}" for path in paths)]))
    first = prepare("csv", str(table), output)
    os.utime(table, (1, 1))
    assert prepare("csv", str(table), output) == first
    table.write_text(table.read_text().replace("path,label", "path,label "))
    # Also if its time is that of another day, as a copy keeps it.
    os.utime(table, (1, 1))
    with pytest.raises(InputError, match=r"photos\.csv is another source or has changed since"):
        prepare("csv", str(table), output)


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


def test_an_option_that_the_source_needs_is_asked_for(images, output):
    message = r"'omniglot' needs the options train, test\. Give each; prepare takes --option=train=A,B"
    with pytest.raises(InputError, match=message):
        prepare("omniglot", str(images), output)


def test_an_option_that_the_source_does_not_have_is_refused(images, output):
    with pytest.raises(InputError, match=r"no option 'test_shrae'.*Did you mean \"test_share\""):
        prepare("folder", str(images), output, options={"test_shrae": 0.5})


def test_a_count_that_is_not_the_official_one_is_noted(images, output, monkeypatch, capsys):
    sources = builder.SOURCES
    official = sources["folder"]._replace(counts={"train": Count(3, 99)}, remark="Papers print 98.")
    monkeypatch.setitem(sources, "folder", official)
    prepare_folder(images, output)
    out = capsys.readouterr().out
    assert "Note: train" in out and "99" in out and "Papers print 98." in out


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
    message = r"4 of 35 images cannot be used; at most 2 .* --max_skipped=0\.115; .* The first is class 1/"
    with pytest.raises(InputError, match=message):
        prepare_folder(images, output, max_skipped=0.05)
    assert load_summary(output) is None and skipped_in(output)
    prepare_folder(images, output, max_skipped=0.115)
    assert len(skipped_in(output)) == len(BAD)


def test_one_bad_image_of_a_few_may_be_unless_none_is_allowed(images, output):
    (images / "class 1" / "bad.png").write_bytes(b"")
    with pytest.raises(InputError, match="1 of 32 images cannot be used; at most 0 may be"):
        prepare_folder(images, output, max_skipped=0)
    assert len(prepare_folder(images, output)["splits"]) == 2


@pytest.mark.parametrize("bad, total", [(1, 3), (4, 35), (29, 100), (33, 1000), (341, 9999)])
def test_the_number_that_is_named_lets_the_bad_images_through_and_a_lesser_one_does_not(bad, total):
    enough = builder._enough(bad, total)
    assert math.ceil(enough * total) >= bad > (enough - 0.0011) * total


def test_the_same_command_with_more_allowed_looks_at_no_image_again(images, output, monkeypatch):
    add_bad(images)
    with pytest.raises(InputError, match="finished shards are kept"):
        prepare_folder(images, output, max_skipped=0)
    monkeypatch.setattr(builder.shards, "write", None)
    prepare_folder(images, output, max_skipped=0.115)
    assert len(skipped_in(output)) == len(BAD)


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


def test_a_split_of_which_nothing_is_left_is_refused(images, output, monkeypatch):
    in_source(monkeypatch, listed("class 0/0.png"), listed("gone.png", split="test", label=2))
    with pytest.raises(InputError, match="No image of the split 'test' can be used"):
        prepare("folder", str(images), output, max_skipped=1)


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
