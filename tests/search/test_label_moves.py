"""Labels follow photos that are moved or renamed, and are not inherited by other photos."""

import pytest
from PIL import Image

from tests.search import updated, write_model, write_photo, write_photos
from tfrank.search import building, labels
from tfrank.search.embedder import Embedder
from tfrank.search.label_moves import GONE, Followed


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos", classes=1, images=24)


@pytest.fixture
def index(tmp_path, embedder, photos):
    """An index of photos named 0.jpg to 23.jpg, of which two have labels and one belongs to no group."""
    updated(tmp_path / "index", embedder, photos)
    say(tmp_path / "index", {name(3): "wren", name(4): "robin", name(5): ""})
    return tmp_path / "index"


def name(number, folder="class 0"):
    return f"{folder}/{number}.jpg"


def say(index, changes):
    labels.change(str(index), changes, labels.said(str(index)).version)


def undo(index):
    labels.undo(str(index), labels.said(str(index)).version)


def test_a_renamed_folder_keeps_its_labels_and_what_can_be_undone(index, embedder, photos):
    say(index, {name(3): "finch"})
    (photos / "class 0").rename(photos / "Rome")
    done = updated(index, embedder, photos)
    assert done.followed == Followed(moved=2)
    there = {name(3, "Rome"): "finch", name(4, "Rome"): "robin"}
    # That a photo belongs to no group was said of its old one.
    assert labels.read(str(index)) == there | {name(5): ""}
    assert [line.partition(",")[0] for line in (index / GONE).read_text().splitlines()] == ["id", name(5)]
    undo(index)
    assert labels.read(str(index)) == there | {name(3, "Rome"): "wren", name(5): ""}
    undo(index)
    assert labels.read(str(index)) == {}


def test_both_copies_of_a_photo_take_their_labels_along_at_once(index, embedder, photos):
    (photos / "class 0" / "copy.jpg").write_bytes((photos / name(3)).read_bytes())
    updated(index, embedder, photos)
    say(index, {"class 0/copy.jpg": "wren"})
    (photos / "class 0").rename(photos / "Rome")
    assert updated(index, embedder, photos).followed.moved == 3
    now = labels.read(str(index))
    assert (now[name(3, "Rome")], now["Rome/copy.jpg"]) == ("wren", "wren")


def test_a_label_that_is_given_while_the_search_is_built_follows_too(index, embedder, photos, monkeypatch):
    (photos / "class 0").rename(photos / "Rome")
    added = building.structure.added

    def slowly_added(*arguments):
        say(index, {name(7): "finch"})
        return added(*arguments)

    monkeypatch.setattr(building.structure, "added", slowly_added)
    assert updated(index, embedder, photos).followed.moved == 3
    assert labels.read(str(index))[name(7, "Rome")] == "finch"


def test_photos_that_are_renumbered_have_their_own_labels_still(index, embedder, photos):
    for number in range(23, -1, -1):
        (photos / name(number)).rename(photos / name(number + 1))
    assert updated(index, embedder, photos).followed.moved == 2
    now = labels.read(str(index))
    assert (now[name(4)], now[name(5)]) == ("wren", "robin") and name(3) not in now


def test_another_picture_under_the_same_name_has_no_label_until_that_is_undone(index, embedder, photos):
    write_photo(photos / name(3), 99, (30, 30))
    done = updated(index, embedder, photos)
    assert done.followed == Followed(taken_back=(name(3),))
    assert labels.read(str(index)) == {name(4): "robin", name(5): ""}
    (sentence,) = done.followed.sentences()
    assert "another picture now: 1; the first: class 0/3.jpg" in sentence
    undo(index)
    assert labels.read(str(index))[name(3)] == "wren"
    assert updated(index, embedder, photos).followed == Followed()
    assert labels.read(str(index))[name(3)] == "wren"


def test_a_new_form_of_the_picture_keeps_its_label(index, embedder, photos):
    picture = Image.open(photos / name(3))
    picture.point(lambda value: int(0.9 * value)).save(photos / name(3), quality=80)
    assert updated(index, embedder, photos).followed == Followed()
    assert labels.read(str(index))[name(3)] == "wren"


def test_another_photo_that_comes_later_under_the_name_of_one_that_is_gone_has_no_label(
    index, embedder, photos
):
    (photos / name(3)).rename(photos.parent / "kept.jpg")
    assert updated(index, embedder, photos).followed == Followed()
    assert labels.read(str(index))[name(3)] == "wren"
    write_photo(photos / name(3), 99, (30, 30))
    assert updated(index, embedder, photos).followed.taken_back == (name(3),)


def test_a_photo_that_comes_back_elsewhere_has_its_label(index, embedder, photos):
    for gone in (3, 4):
        (photos / name(gone)).rename(photos.parent / f"{gone}.jpg")
    updated(index, embedder, photos)
    write_photo(photos / name(4), 99, (30, 30))
    (photos.parent / "4.jpg").rename(photos / "back.jpg")
    (photos.parent / "3.jpg").rename(photos / name(3))
    assert updated(index, embedder, photos).followed == Followed(moved=1)
    assert labels.read(str(index)) == {name(3): "wren", "back.jpg": "robin", name(5): ""}


def test_a_copy_has_no_label_and_takes_none(index, embedder, photos):
    (photos / "copy.jpg").write_bytes((photos / name(3)).read_bytes())
    assert updated(index, embedder, photos).followed == Followed()
    assert labels.read(str(index)) == {name(3): "wren", name(4): "robin", name(5): ""}


def test_a_copy_takes_the_label_where_the_photo_is_removed_and_is_second_to_where_it_is_moved(
    index, embedder, photos
):
    for number in (3, 4):
        (photos / f"a copy of {number}.jpg").write_bytes((photos / name(number)).read_bytes())
    updated(index, embedder, photos)
    (photos / name(3)).unlink()
    (photos / name(4)).rename(photos / "moved.jpg")
    assert updated(index, embedder, photos).followed == Followed(moved=2)
    assert labels.read(str(index)) == {"a copy of 3.jpg": "wren", "moved.jpg": "robin", name(5): ""}


def test_an_image_removed_by_its_id_is_known_when_another_comes_under_it(index, embedder, photos):
    building.remove(str(index), [name(3)])
    write_photo(photos / name(3), 99, (30, 30))
    assert updated(index, embedder, photos).followed.taken_back == (name(3),)


def test_an_update_that_is_killed_before_its_version_is_completed_by_the_next(
    index, embedder, photos, monkeypatch
):
    write_photo(photos / name(3), 99, (30, 30))
    (photos / name(4)).rename(photos / "moved.jpg")
    monkeypatch.setattr(building, "publish", None)
    with pytest.raises(TypeError):
        updated(index, embedder, photos)
    monkeypatch.undo()
    updated(index, embedder, photos)
    assert labels.read(str(index)) == {"moved.jpg": "robin", name(5): ""}


def test_with_another_model_labels_follow_too_and_changed_files_keep_theirs(index, photos, tmp_path):
    other = Embedder(str(write_model(tmp_path / "other", seed=1)))
    (photos / name(4)).rename(photos / "moved.jpg")
    (photos / name(6)).rename(photos / name(4))
    write_photo(photos / name(3), 99, (30, 30))
    assert updated(index, other, photos).followed == Followed(moved=1)
    assert labels.read(str(index)) == {name(3): "wren", "moved.jpg": "robin", name(5): ""}
