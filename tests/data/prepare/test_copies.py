"""Near copies in train and in test: told, left out of train, or put on one side."""

import csv
import io
import os

import numpy as np
import pytest
from PIL import Image

from tests.data import image_records, write_records
from tests.data.prepare import prepare_folder
from tests.data.test_near_copies import PHOTOS
from tfrank.common.checks import InputError
from tfrank.data.prepare.advice import advice
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import load_copies, load_summary, open_split, shared


@pytest.fixture
def photos(tmp_path):
    """Six classes of four photos that are no copies of each other."""
    for number, image in enumerate(PHOTOS):
        place = tmp_path / "photos" / f"class {number % 6}"
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def copied(photos, output, tmp_path):
    """The same; a photo of test is copied, smaller, to a class of train. Returns its id and the copy's."""
    prepare_folder(photos, output)
    train, test = (open_split(output, split).id[0].decode() for split in ("train", "test"))
    copy = os.path.join(os.path.dirname(train), "copy.jpg")
    Image.open(photos / test).crop((3, 4, 236, 198)).resize((150, 120)).save(photos / copy, quality=60)
    return test, copy


def ids(folder, split):
    return {image.decode() for image in open_split(folder, split).id}


def test_photos_that_are_no_copies_are_not_told(photos, output, capsys):
    prepare_folder(photos, output)
    assert "near copy" not in capsys.readouterr().out and load_copies(output) == []


def test_a_near_copy_is_told_and_listed_and_kept(photos, output, copied, capsys):
    again = f"{output} again"
    prepare_folder(photos, again)
    said = capsys.readouterr().out
    assert f"1 photo of test has a near copy in train, such as {copied[0]} and {copied[1]}" in said
    with open(os.path.join(again, "near_copies.csv"), newline="") as file:
        rows = [(row["group"], row["split"], row["id"]) for row in csv.DictReader(file)]
    assert rows == [("1", "train", copied[1]), ("1", "test", copied[0])]
    assert copied[1] in ids(again, "train") and copied[0] in ids(again, "test")
    assert "near copy in train" in load_summary(again)["advice"][0]


def test_a_near_copy_is_left_out_of_train_or_goes_to_one_side(photos, output, copied, capsys):
    for choice in ("drop", "together"):
        folder = f"{output} {choice}"
        prepare("folder", str(photos), folder, options={"test_share": 0.5, "near_copies": choice})
        everywhere = ids(folder, "train") | ids(folder, "test")
        assert (copied[1] in everywhere) == (choice == "together") and copied[0] in everywhere
        assert shared(load_copies(folder), "test", "train") == []
        assert len(everywhere) == 24 + (choice == "together")
    said = capsys.readouterr().out
    assert "Left out of train: 1 near copy of test photos" in said and "1 class moves" in said
    with pytest.raises(InputError, match=r"near_copies.*keep"):
        prepare("folder", str(photos), f"{output} x", options={"near_copies": "kep"})


def test_photos_without_a_class_bring_no_classes_together(photos, output, tmp_path):
    lines = ["path,label,split"]
    for number in range(12):
        path = f"class {number % 6}/{number}.jpg"
        lines.append(f"photos/{path},{number % 6},{'train' if number % 6 < 3 else 'test'}")
        # One of each split has a copy without a class.
        if number in (3, 1):
            Image.open(photos / path).resize((160, 130)).save(photos / f"copy {number}.jpg")
            lines.append(f"photos/copy {number}.jpg,-1,train")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    prepare("csv", str(tmp_path / "list.csv"), output, options={"near_copies": "together"})
    train, test = (open_split(output, split).label for split in ("train", "test"))
    assert len(load_copies(output)) == 4 and np.unique(test).tolist() == [3, 4, 5]
    assert np.unique(train).tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("choice", ["drop", "together"])
def test_photos_that_are_all_near_copies_are_one_line(choice, tmp_path, output):
    for number in range(12):
        (tmp_path / "photos" / f"class {number % 4}").mkdir(parents=True, exist_ok=True)
        PHOTOS[0].save(tmp_path / "photos" / f"class {number % 4}" / f"{number}.jpg", quality=60 + number)
    with pytest.raises(InputError, match="near cop") as told:
        prepare("folder", str(tmp_path / "photos"), output, options={"near_copies": choice})
    assert len(str(told.value).splitlines()) == 1


def test_what_misleads_is_one_sentence_each(photos, output, capsys):
    (photos / "alone").mkdir()
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, [2532, 1170], np.uint8)).save(buffer, "PNG")
    # With a text whose checksum is wrong, which is no reason to leave it out.
    head, text, rest = buffer.getvalue()[:33], b"\0\0\0\4tEXta\0bcXXXX", buffer.getvalue()[33:]
    (photos / "alone" / "screen.png").write_bytes(head + text + rest)
    for number in range(12, 36):
        pixels = np.random.default_rng(number).integers(0, 256, [230, 230, 3], np.uint8)
        Image.fromarray(pixels).save(photos / "class 0" / f"more {number}.png")
    prepare_folder(photos, output)
    said, advice = capsys.readouterr().out, load_summary(output)["advice"]
    assert advice == [line.removeprefix("Note: ") for line in said.splitlines() if line.startswith("Note: ")]
    assert advice[0].startswith("Class class 0 has 28 of 49 photos (57%)")
    assert advice[1].startswith("24 of 49 photos have a shorter side below 224 pixels")
    assert {sentence.split(",")[0] for sentence in advice[2:]} == {
        "1 class has one photo",
        "1 of 49 photos look like screenshots",
    }


def test_photos_without_a_class_are_not_called_a_large_one(tmp_path):
    index = write_records(image_records(labels=[-1] * 8 + [4, 4, 5, 5]), str(tmp_path), "train")
    looks = np.zeros(len(index), [("thumbnail", bool), ("screenshot", bool), ("side", int)])
    looks["thumbnail"], looks["side"] = True, 500
    assert advice({"train": index}, {"train": looks}, {4: "owl", 5: "wren"}) == []
