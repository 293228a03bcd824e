"""Omniglot in the official layout, and the official archive where it is."""

import collections
import pathlib

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.data.images import ImageLoader
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import open_split
from tfrank.data.records import RecordReader
from tfrank.data.sources.omniglot import read_omniglot
from tfrank.data.transforms import Transform

REAL_ARCHIVE = pathlib.Path(__file__).parents[4] / "shared" / "data" / "omniglot_background_small1.zip"
ALPHABETS = {"Balinese": 2, "Early_Aramaic": 3, "Greek": 1}
DRAWINGS = 4
TOP = "images_background_small1"


@pytest.fixture
def folder(tmp_path):
    """What an archive unpacks to, with fewer drawings."""
    number = 0
    for alphabet, characters in ALPHABETS.items():
        for character in range(1, characters + 1):
            number += 1
            place = tmp_path / TOP / alphabet / f"character{character:02d}"
            place.mkdir(parents=True)
            for k in range(1, DRAWINGS + 1):
                (place / f"{number:04d}_{k:02d}.png").write_bytes(b"")
    return tmp_path / TOP


def read(folder, train=("Balinese",), test=("Greek", "Early_Aramaic")):
    return list(read_omniglot(str(folder), train=train, test=test))


def test_drawings_of_a_character_are_a_class(folder):
    images = read(folder)
    assert collections.Counter((image.split, image.text) for image in images) == {
        ("train", "Balinese/character01"): DRAWINGS,
        ("train", "Balinese/character02"): DRAWINGS,
        ("test", "Early_Aramaic/character01"): DRAWINGS,
        ("test", "Early_Aramaic/character02"): DRAWINGS,
        ("test", "Early_Aramaic/character03"): DRAWINGS,
        ("test", "Greek/character01"): DRAWINGS,
    }
    assert len({(image.label, image.text) for image in images}) == len({image.label for image in images}) == 6
    assert len({image.id for image in images}) == len(images)
    assert images[0].path == "Balinese/character01/0001_01.png"
    assert images[0].id == "Balinese/character01/0001_01"


@pytest.mark.parametrize("form", ["{}", "{}/"])
def test_the_folder_may_be_named_in_any_way(folder, monkeypatch, form):
    wanted = read(folder)
    monkeypatch.chdir(folder.parent)
    assert read(form.format(TOP)) == wanted
    monkeypatch.chdir(folder)
    assert read(form.format(".")) == wanted


def test_the_folder_above_will_do(folder):
    assert [image.id for image in read(folder.parent)] == [image.id for image in read(folder)]
    assert read(folder.parent)[0].path == f"{TOP}/Balinese/character01/0001_01.png"


def test_files_that_are_no_drawings_are_left_out(folder):
    (folder / "Greek" / ".DS_Store").write_bytes(b"x")
    (folder / "Greek" / "character01" / "._0006_01.png").write_bytes(b"x")
    (folder / "overview.png").write_bytes(b"x")
    assert len(read(folder)) == DRAWINGS * sum(ALPHABETS.values())


def test_an_alphabet_that_is_not_there_is_refused_with_the_likely_one(folder):
    with pytest.raises(InputError) as error:
        read(folder, test=["Greek", "Early Aramaic"])
    assert str(error.value) == (
        f"{folder} has no alphabet 'Early Aramaic'. Did you mean \"Early_Aramaic\"?"
        " It has Balinese, Early_Aramaic, Greek."
    )


@pytest.mark.parametrize("alphabets", ["Greek", 7])
@pytest.mark.parametrize("side", ["train", "test"])
def test_what_is_no_list_of_alphabets_is_refused(folder, alphabets, side):
    with pytest.raises(InputError, match=rf"argument `{side}`. Expected a list of alphabets"):
        read(folder, **{side: alphabets})


def test_what_is_no_name_of_an_alphabet_is_refused(folder):
    with pytest.raises(InputError, match="has no alphabet 7"):
        read(folder, train=[7])


def test_a_folder_without_drawings_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no drawings .* Give the folder of an Omniglot archive\."):
        read(tmp_path)


def test_the_official_archive_has_136_characters_of_20_drawings(tmp_path):
    if not REAL_ARCHIVE.exists():
        pytest.skip("omniglot_background_small1.zip is not in ../shared/data beside the repository")
    options = {"train": ["Balinese", "Korean", "Latin"], "test": ["Early_Aramaic", "Greek"]}
    prepare("omniglot", str(REAL_ARCHIVE), str(tmp_path), options=options)
    train, test = (open_split(str(tmp_path), split) for split in ("train", "test"))
    images = collections.Counter([*train.label, *test.label])
    assert collections.Counter(images.values()) == {20: 136}
    loader = ImageLoader(transform=Transform(size=105))
    for data in RecordReader(train).read(range(0, len(train), 200)):
        assert set(np.unique(loader.test(data))) == {0, 255}
