"""Lists of images, and the errors that are known before any image is read."""

import pathlib
import re
import tracemalloc
import unicodedata

import pytest

from tests.data.prepare import in_source, listed, write_images
from tfrank.common.checks import InputError
from tfrank.data.prepare import builder
from tfrank.data.prepare.builder import prepare
from tfrank.data.prepare.listing import list_images
from tfrank.data.record_folder import open_split
from tfrank.data.sources.image import Source, SourceImage


def test_paths_that_lead_nowhere_stop_before_any_image_is_read_and_say_where_it_looked(
    images, output, monkeypatch
):
    in_source(monkeypatch, listed("class 0/0.png"), *(listed(f"x/{number}.png") for number in range(57)))
    monkeypatch.setattr(builder.shards, "write", None)
    with pytest.raises(InputError) as error:
        prepare("folder", str(images), output)
    assert str(error.value) == (
        "57 of 58 listed images do not exist. The first, x/0.png, was expected at"
        f" {images}/x/0.png, since paths are relative to {images}. Correct the paths, or skip those images:"
        " prepare them with --max_skipped=0.983."
    )


@pytest.mark.parametrize("fewer", [0.0, 0.002])
def test_the_number_named_for_missing_files_counts_repeated_ones_too_and_will_do(
    images, output, monkeypatch, fewer
):
    there = [listed(f"class {c}/{n}.png") for c in range(6) for n in range(5)]
    gone = [listed(f"images/{n}.jpg") for n in range(20)]
    repeated = [listed("class 0/1.png", id="class 0/0.png"), listed("images/x.jpg", id="images/0.jpg")]
    source = Source(lambda folder: iter([*there, *gone, *repeated]), missing="Of 52 all but 30 are gone.")
    monkeypatch.setitem(builder.SOURCES, "folder", source)
    message = r"21 of 52 listed images .* --max_skipped=0\.424\. Of 52 all but 30 are gone\.$"
    with pytest.raises(InputError, match=message):
        prepare("folder", str(images), output)
    if fewer:
        with pytest.raises(InputError, match=r"--max_skipped=0\.424"):
            prepare("folder", str(images), output, max_skipped=21 / 52 - fewer)
    else:
        assert prepare("folder", str(images), output, max_skipped=0.424)["splits"]["train"]["skipped"] == 22


def test_paths_with_backslashes_are_told_of(images, output, monkeypatch):
    in_source(monkeypatch, listed("class 0\\0.png"))
    with pytest.raises(InputError, match=r"Correct the paths, with / instead of \\\.$"):
        prepare("folder", str(images), output, max_skipped=0)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_class_in_train_and_in_test_is_refused_unless_allowed(images, output, monkeypatch, allowed):
    in_source(monkeypatch, listed("class 0/0.png"), listed("class 0/1.png", split="test"))
    if allowed:
        prepare("folder", str(images), output, allow_common_classes=True)
        assert len(open_split(output, "test")) == 1
    else:
        with pytest.raises(InputError, match=r"Classes in both train and test: 1 \('a'\)\."):
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
    message = f"Images in both train and test: 1, such as {train!r}"
    with pytest.raises(InputError, match=re.escape(message)):
        prepare("csv", str(manifest), output, allow_common_classes=True)


def test_a_source_without_images_is_refused(images, output, monkeypatch):
    in_source(monkeypatch)
    with pytest.raises(InputError, match="The source has no images"):
        prepare("folder", str(images), output)


def test_listing_takes_a_few_bytes_an_image(tmp_path):
    """Its line goes to disk; where that begins and a hash of the id are kept."""
    images = (listed(f"folder/{number}.jpg", label=number % 100) for number in range(10_000))
    tracemalloc.start()
    try:
        listing = list_images(images, str(tmp_path))["train"]
        assert len(listing) == 10_000 and tracemalloc.get_traced_memory()[1] < 60 * 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "classes, images, of", [(3, 4, "3 classes of 13 images"), (1, 1, "1 class of 2 images")]
)
def test_fewer_than_four_classes_are_refused_before_anything_is_read(tmp_path, output, classes, images, of):
    folder = write_images(tmp_path / "few", classes=classes, images=images)
    with pytest.raises(InputError, match=rf" has {of}\. At least 4 classes are needed, two to train on"):
        prepare("folder", str(folder), output)
    assert not list(pathlib.Path(output).glob("*.tfrecord"))


def test_one_image_of_each_class_is_too_few(tmp_path, output):
    folder = write_images(tmp_path / "few", classes=4, images=1)
    (folder / "class 0" / "1.png").unlink()
    with pytest.raises(InputError, match=r"All classes of test in .* have only one image \(2 classes\)"):
        prepare("folder", str(folder), output)


@pytest.mark.parametrize(("field", "what"), [("id", "id"), ("text", "class")])
def test_a_name_too_long_for_an_index_is_refused_before_any_image_is_read(tmp_path, field, what):
    image = SourceImage(
        **{"split": "train", "path": "a.png", "label": 0, "text": "a", "id": "a", field: "x" * 10**7}
    )
    with pytest.raises(
        InputError, match=rf"The {what} of the image a\.png has 10,000,000 bytes; at most 1,024 are"
    ):
        list_images([image], str(tmp_path))
