"""The index of a folder of photos is found again where the folder was moved or renamed."""

import os
import pathlib
import shutil

import pytest

from tests.search import updated, write_photo, write_photos
from tfrank.search.updating import index_for, index_of


@pytest.fixture
def index(tmp_path, embedder, monkeypatch):
    """The index of tmp_path / "photos", where `index_for` puts it."""
    monkeypatch.chdir(tmp_path)
    photos = write_photos(tmp_path / "photos")
    updated(index_for(str(photos)), embedder, photos)
    return index_of(str(photos))


def test_a_renamed_folder_goes_on_with_its_index_and_nothing_is_embedded_again(
    index, embedder, tmp_path, capsys
):
    photos = (tmp_path / "photos").rename(tmp_path / "Rome")
    write_photo(photos / "new.jpg", 99)
    assert index_for(str(photos)) == index
    (said,) = capsys.readouterr().out.splitlines()
    assert said == f"{photos} has the photos of {tmp_path}/photos, which is gone. Its index goes on: {index}"
    done = updated(index, embedder, photos)
    assert (done.embedded, done.kept, done.removed) == (1, 12, 0)
    # Started again, it is that index still, and nothing is said.
    assert (index_for(str(photos)), capsys.readouterr().out) == (index, "")


def test_a_new_folder_under_an_old_name_does_not_take_the_index_of_the_renamed_one(
    index, embedder, tmp_path, capsys
):
    renamed = (tmp_path / "photos").rename(tmp_path / "photos of 2025")
    updated(index_for(str(renamed)), embedder, renamed)
    photos = write_photos(tmp_path / "photos", images=2)
    other = index_for(str(photos))
    assert other == f"{index}-2"
    updated(other, embedder, photos)
    assert (index_for(str(renamed)), index_for(str(photos))) == (index, other)
    # A link to it is it.
    (tmp_path / "link").symlink_to(renamed)
    capsys.readouterr()
    assert (index_for(str(tmp_path / "link")), capsys.readouterr().out) == (index, "")


def test_a_copy_of_a_folder_that_is_still_there_has_an_index_of_its_own(index, tmp_path):
    copy = shutil.copytree(tmp_path / "photos", tmp_path / "copy")
    assert index_for(str(copy)) == index_of(str(copy))


def test_other_photos_of_the_same_names_have_an_index_of_their_own(index, tmp_path):
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").rglob("*.jpg"):
        write_photo(tmp_path / "card" / path.relative_to(tmp_path / "elsewhere"), 99, (40, 30))
    assert index_for(str(tmp_path / "card")) == index_of(str(tmp_path / "card"))


def test_an_index_does_not_lie_among_the_photos(index, tmp_path, monkeypatch):
    photos = os.path.realpath(tmp_path / "photos")
    monkeypatch.chdir(photos)
    assert index_of(".") == index_of("..//photos") == os.path.join(os.path.dirname(photos), index)
    os.makedirs(index)  # It lay there before.
    assert index_of(".") == index


def test_an_index_among_photos_whose_folder_was_renamed_goes_on(index, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    (photos / "runs").mkdir()
    shutil.move(tmp_path / "runs" / "photos", photos / "runs" / "photos")
    monkeypatch.chdir(shutil.move(photos, tmp_path / "renamed"))
    assert index_for(".") == index


def test_photos_on_another_drive_have_an_index_here(monkeypatch):
    def refuse(paths):
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr(os.path, "commonpath", refuse)
    assert index_of("/photos").startswith(os.path.join("runs", "photos", "photos-"))


def test_a_damaged_index_of_another_folder_is_left_alone(index, tmp_path):
    photos = (tmp_path / "photos").rename(tmp_path / "Rome")
    pathlib.Path(index, "CURRENT").write_text("none")
    assert index_for(str(photos)) == index_of(str(photos))
