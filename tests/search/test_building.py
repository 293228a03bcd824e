"""Making and changing an index: only what is new is embedded, and readers see one whole version."""

import csv
import dataclasses
import itertools
import os
import shutil
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command_lines import CommandLine, run
from tests.data.prepare import prepare_folder, write_images
from tests.search import updated, write_model, write_photo, write_photos
from tfrank import search
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.evaluation.nearest.scann_probe import scann_problem
from tfrank.export.saved_model import saved_model_of
from tfrank.search import building, index_folder, structure
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index import SearchIndex
from tfrank.search.updating import update_from


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


def assert_right(folder, embedder, photos):
    """The index has each photo once, with the embedding of its file now."""
    index = search.open(folder)
    paths = {path.relative_to(photos).as_posix(): path for path in photos.rglob("*.jpg")}
    assert sorted(index.ids) == sorted(paths)
    for key, row in zip(index.ids, index.embeddings):
        np.testing.assert_allclose(row, embedder.embed([paths[key].read_bytes()])[0], atol=1e-5)


def test_only_new_and_changed_images_are_embedded_and_missing_ones_leave(tmp_path, embedder, photos):
    first = updated(tmp_path / "index", embedder, photos)
    assert (first.embedded, first.kept, first.removed) == (12, 0, 0)
    write_photo(photos / "class 0" / "new.jpg", 99)
    write_photo(photos / "class 1" / "1.jpg", 98, (30, 30))
    (photos / "class 2" / "2.jpg").unlink()
    second = updated(tmp_path / "index", embedder, photos)
    assert (second.embedded, second.kept, second.removed) == (2, 10, 1)
    assert second.version.number == 2 and second.version.rows == 12
    assert_right(tmp_path / "index", embedder, photos)
    assert updated(tmp_path / "index", embedder, photos).version == second.version


def test_images_of_which_only_the_time_changed_are_not_embedded_again(
    tmp_path, embedder, photos, monkeypatch
):
    """As after a copy, a restored backup, or a drive that counts in another time zone."""
    index = tmp_path / "index"
    updated(index, embedder, photos)
    first, other, *rest = sorted(photos.rglob("*.jpg"))
    for path in (first, *rest):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 3_600 * 10**9))
    # Two that exchange their names have each other's file, and no thumbnail to take over.
    swapped = [first.read_bytes(), other.read_bytes()]
    for path, data in zip((other, first), swapped):
        path.write_bytes(data)
        os.utime(path, ns=(0, 7))
    # An update that was interrupted has written another thumbnail.
    thumbnail = index / "thumbnails"
    thumbnails = {path: path.read_bytes() for path in thumbnail.rglob("*") if path.is_file()}
    for path in thumbnails:
        path.write_bytes(b"another")
    embedded, embed = [], embedder.embed
    monkeypatch.setattr(
        embedder, "embed", lambda images, *rest: embedded.extend(images) or embed(images, *rest)
    )
    done = updated(index, embedder, photos)
    assert len(embedded) == done.embedded == 2 and (done.moved, done.kept, done.removed) == (0, 10, 0)
    monkeypatch.undo()
    assert_right(index, embedder, photos)
    assert sorted(path.read_bytes() for path in thumbnails) == sorted(thumbnails.values())
    assert updated(index, embedder, photos).kept == 12


def test_files_of_one_size_and_time_that_changed_places_have_their_own_embeddings(
    tmp_path, embedder, photos, monkeypatch
):
    """As pictures without compression, unpacked with one time."""
    paths = sorted(photos.rglob("*.jpg"))
    size = max(path.stat().st_size for path in paths)
    first, other, third, *_ = paths
    for path in (first, other, third):
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
        os.utime(path, ns=(0, 7))
    updated(tmp_path / "index", embedder, photos)
    first.rename(tmp_path / "aside")
    other.rename(first)
    (tmp_path / "aside").rename(other)
    read, reading = [], files.open_regular
    monkeypatch.setattr(files, "open_regular", lambda path: read.append(path) or reading(path))
    done = updated(tmp_path / "index", embedder, photos)
    assert (done.embedded, done.kept) == (2, 10) and set(read) == {str(first), str(other), str(third)}
    assert_right(tmp_path / "index", embedder, photos)
    assert updated(tmp_path / "index", embedder, photos).kept == 12


def test_moved_renamed_and_copied_images_are_not_embedded_again(tmp_path, embedder, photos, monkeypatch):
    updated(tmp_path / "index", embedder, photos)
    thumbnail = index_folder.IndexFolder(str(tmp_path / "index")).read_thumbnail
    before = thumbnail("class 1/1.jpg")
    (photos / "class 1").rename(photos / "wrens")
    (photos / "class 0" / "0.jpg").rename(photos / "class 0" / "new.jpg")
    shutil.copy(photos / "class 0" / "new.jpg", photos / "class 2" / "copy.jpg")
    (photos / "class 2" / "2.jpg").unlink()
    embedded = []
    monkeypatch.setattr(embedder, "embed", lambda images: embedded.extend(images) or np.zeros([0, 8]))
    done = updated(tmp_path / "index", embedder, photos)
    assert embedded == [] and (done.embedded, done.moved, done.kept, done.removed) == (0, 6, 6, 1)
    monkeypatch.undo()
    assert_right(tmp_path / "index", embedder, photos)
    index = search.open(tmp_path / "index")
    assert index.metadata("wrens/1.jpg")["label"] == "wrens" and index.metadata("wrens/1.jpg")["width"] == 24
    assert thumbnail("wrens/1.jpg") == before


def test_another_model_embeds_all_again_while_readers_keep_the_old(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    reader = search.open(tmp_path / "index")
    other = Embedder(str(write_model(tmp_path / "other", seed=1, dim=6)))
    assert updated(tmp_path / "index", other, photos).embedded == 12
    assert len(reader.search(str(photos / "class 0" / "0.jpg"))[0].ids) == 10
    assert search.open(tmp_path / "index").embeddings.shape == (12, 6)
    assert_right(tmp_path / "index", other, photos)


def test_images_that_cannot_be_read_are_listed_and_the_rest_is_indexed(tmp_path, embedder, photos):
    (photos / "class 0" / "text.jpg").write_text("text")
    (photos / "class 0" / "gone.jpg").symlink_to("nowhere")
    done = updated(tmp_path / "index", embedder, photos)
    assert done.embedded == 12 and len(done.skipped) == 2
    with open(tmp_path / "index" / "skipped.csv") as file:
        listed = {row["id"]: row["reason"] for row in csv.DictReader(file)}
    assert listed["class 0/gone.jpg"] == "No such file or directory"
    assert "no image in a known format" in listed["class 0/text.jpg"]


def test_a_csv_file_gives_ids_labels_and_columns_which_may_change_without_embedding(
    tmp_path, embedder, photos
):
    lines = [f"photos/class {n % 3}/{n}.jpg,p{n},bird,{n * 1.5}" for n in range(6)]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,id,label,price", *lines]))
    updated(tmp_path / "index", embedder, table)
    index = search.open(tmp_path / "index")
    assert index.metadata("p4")["price"] == 6.0 and index.metadata("p4")["label"] == "bird"
    table.write_text("\n".join(["path,id,label,price", *lines]).replace("bird", "wren"))
    again = updated(tmp_path / "index", embedder, table)
    assert again.embedded == 0 and search.open(tmp_path / "index").metadata("p4")["label"] == "wren"


def test_an_image_that_is_given_again_gets_its_new_label_and_the_others_keep_theirs(
    tmp_path, embedder, photos
):
    updated(tmp_path / "index", embedder, photos)
    first, *_ = listed_images(str(photos))
    again = first._replace(label="wren", others={"price": 2})
    building.update(str(tmp_path / "index"), embedder, [again], remove_others=False, quiet=True)
    index = search.open(tmp_path / "index")
    assert index.metadata(first.id)["label"] == "wren" and index.metadata(first.id)["price"] == 2
    assert index.metadata("class 2/2.jpg")["label"] == "class 2" and len(index) == 12


def test_records_give_their_classes_and_splits_and_only_changed_ones_are_embedded(tmp_path, embedder):
    images, records = write_images(tmp_path / "images"), str(tmp_path / "records")
    prepare_folder(images, records)
    assert updated(tmp_path / "index", embedder, records).embedded == 31
    index = search.open(tmp_path / "index")
    assert set(index.table.column("split").to_pylist()) == {"train", "test"}
    assert [index.metadata(key)["label"] for key in index.ids] == [key.split("/")[0] for key in index.ids]
    again = updated(tmp_path / "index", embedder, records)
    assert (again.embedded, again.kept) == (0, 31)
    path = next(images.rglob("*.png"))
    path.unlink()
    shutil.rmtree(records)
    prepare_folder(images, records)
    assert updated(tmp_path / "index", embedder, records)[1:4] == (0, 30, 1)


def test_thumbnails_leave_with_their_images(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    assert len(list((tmp_path / "index" / "thumbnails").iterdir())) == 12
    building.remove(str(tmp_path / "index"), ["class 0/0.jpg"])
    (photos / "class 1" / "1.jpg").unlink()
    (tmp_path / "index" / "thumbnails" / "of a killed run.jpg").touch()
    done = updated(tmp_path / "index", embedder, photos)
    assert done.removed == 1 and not done.skipped and done.embedded == 1
    assert thumbnails(tmp_path) == {
        os.path.basename(index_of(tmp_path).thumbnail(key)) for key in index_of(tmp_path).ids
    }
    # Also if another model embeds those that are left.
    (photos / "class 0" / "3.jpg").unlink()
    updated(tmp_path / "index", Embedder(str(write_model(tmp_path / "other", seed=1))), photos)
    assert thumbnails(tmp_path) == {
        os.path.basename(index_of(tmp_path).thumbnail(key)) for key in index_of(tmp_path).ids
    }


def thumbnails(tmp_path):
    return {path.name for path in (tmp_path / "index" / "thumbnails").iterdir()}


def test_an_open_index_helps_the_next_one_to_open_and_leaves_nothing_in_it(tmp_path, embedder, photos):
    images = listed_images(str(photos))
    first, others = images[0]._replace(others={"price": 2}), images[1:]
    building.update(str(tmp_path / "index"), embedder, others, quiet=True)
    building.update(str(tmp_path / "index"), embedder, [first], remove_others=False, quiet=True)
    before = index_of(tmp_path)
    assert "price" in before.table.column_names
    building.remove(str(tmp_path / "index"), [first.id])
    after = SearchIndex(str(tmp_path / "index"), before=before)
    fresh = index_of(tmp_path)
    assert after.table.equals(fresh.table) and after.ids.tolist() == fresh.ids.tolist()
    np.testing.assert_array_equal(after.embeddings, fresh.embeddings)
    assert "price" not in after.table.column_names and len(before) == 12


def index_of(tmp_path):
    return search.open(tmp_path / "index")


def test_removed_images_are_gone_and_unknown_ones_are_named(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    version = building.remove(str(tmp_path / "index"), ["class 0/0.jpg", "class 1/1.jpg"])
    assert version.rows == 10 and "class 0/0.jpg" not in search.open(tmp_path / "index")
    with pytest.raises(InputError, match="The index has no image 'x'"):
        building.remove(str(tmp_path / "index"), ["x"])
    with pytest.raises(InputError, match="no image left"):
        building.remove(str(tmp_path / "index"), search.open(tmp_path / "index").ids.tolist())


def test_the_command_says_that_a_removed_image_comes_back_where_its_file_stays(tmp_path, embedder, photos):
    folder = str(tmp_path / "index")
    updated(folder, embedder, photos)
    taken = "class 0/0.jpg,class 1/1.jpg"
    ended = run("-m", "tfrank", "index", "remove", f"--index_dir={folder}", f"--ids={taken}")
    said = "A removed image comes back with the next tfrank index --images, unless its file goes too."
    assert ended.output.splitlines() == [f"Version 2 of {folder} has 10 images.", said]
    (photos / "class 0" / "0.jpg").unlink()
    updated(folder, embedder, photos)
    index = search.open(folder)
    assert "class 1/1.jpg" in index and "class 0/0.jpg" not in index


def interrupt(tmp_path, embedder, photos, monkeypatch):
    """An index of 12 photos, and what an update left that ended when it had embedded two changed ones."""
    updated(tmp_path / "index", embedder, photos)
    write_photo(photos / "class 0" / "0.jpg", 97)
    write_photo(photos / "class 1" / "1.jpg", 98)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "fsync", failing_at(2))
        updated(tmp_path / "index", embedder, photos)


def test_an_image_that_is_added_after_an_interrupted_update_takes_no_other_away(
    tmp_path, embedder, photos, monkeypatch
):
    interrupt(tmp_path, embedder, photos, monkeypatch)
    new = write_photo(tmp_path / "new.jpg", 99)
    (listed,) = listed_images(str(table(tmp_path, f"path\n{new}")))
    building.update(str(tmp_path / "index"), embedder, [listed], remove_others=False, quiet=True)
    assert len(search.open(tmp_path / "index")) == 13
    # What the interrupted update embedded is still there for the next one.
    again = updated(tmp_path / "index", embedder, photos)
    assert (again.embedded, again.kept, again.removed) == (0, 12, 1)


def test_only_what_is_removed_after_an_interrupted_update_is_gone(tmp_path, embedder, photos, monkeypatch):
    interrupt(tmp_path, embedder, photos, monkeypatch)
    assert building.remove(str(tmp_path / "index"), ["class 2/2.jpg"]).rows == 11


def test_an_image_is_not_added_by_another_model(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    other = Embedder(str(write_model(tmp_path / "other", seed=1)))
    with pytest.raises(InputError, match="has another model by now"):
        updated(tmp_path / "index", other, photos, remove_others=False)
    assert len(search.open(tmp_path / "index")) == 12


def test_an_image_that_only_an_interrupted_update_has_cannot_be_removed(
    tmp_path, embedder, photos, monkeypatch
):
    updated(tmp_path / "index", embedder, photos)
    write_photo(photos / "class 0" / "new.jpg", 99)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "fsync", failing_at(2))
        updated(tmp_path / "index", embedder, photos)
    with pytest.raises(InputError, match=r"The index has no image 'class 0/new.jpg'"):
        building.remove(str(tmp_path / "index"), ["class 0/new.jpg"])


def test_many_small_files_are_joined(tmp_path, embedder, photos, monkeypatch):
    monkeypatch.setattr(building, "MOST_SMALL", 3)
    images = listed_images(str(photos))
    for number in range(1, 9):
        building.update(str(tmp_path / "index"), embedder, images[:number], quiet=True)
    assert len(search.open(tmp_path / "index").version.parts) <= 4
    assert search.open(tmp_path / "index").ids.tolist() == [image.id for image in images[:8]]


def test_one_image_in_a_thousand_stays_where_it_was(tmp_path, embedder, photos, monkeypatch):
    monkeypatch.setattr(building, "PART_ROWS", 4)
    updated(tmp_path / "index", embedder, photos)
    before = {path.name for path in (tmp_path / "index").glob("*.parquet")}
    building.remove(str(tmp_path / "index"), ["class 0/0.jpg"])
    parts = search.open(tmp_path / "index").version.parts
    assert len(before & set(parts)) == 2 and len(parts) == 3


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda folder: folder, "has no images. Images end in"),
        (lambda folder: folder / "none", "--images does not exist"),
        (lambda folder: table(folder, "file,label\na.jpg,b"), "has no column `path`. Its columns are: file"),
        (lambda folder: table(folder, "path,width\na.jpg,3"), "the column `width`, which the index fills in"),
        (lambda folder: table(folder, "path,id\na.jpg,x\nb.jpg,x"), "the id 'x' twice"),
        (lambda folder: table(folder, "path\n"), "has no images"),
        (lambda folder: table(folder, "path\na.jpg,b"), "line 2: expected 1 values, one for each column"),
    ],
)
def test_a_bad_list_of_images_is_named(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        listed_images(str(make(tmp_path)))


def table(folder, text):
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_no_readable_image_leaves_the_old_version(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "x.jpg").write_text("text")
    with pytest.raises(InputError, match=r"No image of .*bad can be read; the first, x.jpg: no image"):
        updated(tmp_path / "index", embedder, bad)
    assert len(search.open(tmp_path / "index")) == 12


def test_an_index_of_first_dimensions_stays_one_of_them_when_it_is_brought_up_to_date(
    tmp_path, model, embedder, photos, capsys
):
    updated(tmp_path / "whole", embedder, photos)
    short, options = str(tmp_path / "short"), {"model": str(model), "dim": 3}
    update_from(short, str(photos), **options)
    whole, opened = search.open(tmp_path / "whole"), search.open(short)
    first = np.asarray(whole.embeddings)[:, :3]
    by_id = {image: row / np.linalg.norm(row) for image, row in zip(whole.ids, first)}
    np.testing.assert_allclose(opened.embeddings, [by_id[image] for image in opened.ids], atol=1e-6)
    capsys.readouterr()
    for again in (options, {}, {"dim": 3}):
        update_from(short, str(photos), **again)
        assert "0 embedded, 12 unchanged" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"`--dim`\. Expected less than the 3 dimensions"):
        update_from(short, str(photos), dim=4)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(InputError, match="--model has no SavedModel"):
        saved_model_of(str(tmp_path))


def failing_at(number):
    """An fsync that finds the disk full at its call of that number."""
    fsync, calls = os.fsync, itertools.count(1)

    def full(descriptor):
        if next(calls) == number:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    return full


def test_a_full_disk_leaves_the_old_version(tmp_path, embedder, photos, monkeypatch):
    updated(tmp_path / "index", embedder, photos)
    write_photo(photos / "class 0" / "new.jpg", 99)
    # While a file of embeddings, the version and CURRENT are written.
    for failing in (1, 2, 2):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
            patched.setattr(os, "fsync", failing_at(failing))
            updated(tmp_path / "index", embedder, photos)
        assert len(search.open(tmp_path / "index")) == 12
    updated(tmp_path / "index", embedder, photos)
    assert_right(tmp_path / "index", embedder, photos)


WITHOUT_SCANN = "ScaNN is not installed."
BY_SCANN = pytest.param("", marks=pytest.mark.skipif(bool(scann_problem()), reason="ScaNN cannot be used"))


@pytest.mark.parametrize("problem", [BY_SCANN, WITHOUT_SCANN], ids=["scann", "faiss"])
def test_a_large_index_is_searched_by_scann_or_faiss_which_follow_changes(tmp_path, monkeypatch, problem):
    monkeypatch.setattr(searchers, "TREE_FROM", 300)
    monkeypatch.setattr(searchers, "scann_problem", lambda: problem)
    rows = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = index_folder.IndexFolder(str(tmp_path / "index"))
    os.makedirs(index.path("models"))

    def published(places, old):
        ids = [f"i{place}" for place in places]
        columns = dict.fromkeys(("id", "path", "label"), pa.array(ids))
        part = index.write_part(index_folder.table_of(columns, rows[places]), "m")
        return building.publish(index, old, "m", 8, [part], "", 10, 0.99).version

    first = published(np.arange(380), None)
    second = published(np.arange(10, 400), first)
    third = published(np.arange(20, 390), second)
    assert first.search.startswith("search-1-")
    assert (second.search, second.changed) == (first.search, 10)
    assert third.changed == 20
    opened = search.open(tmp_path / "index")
    (found,) = opened.search(rows[385], k=5)
    expected = np.argsort(-(rows[20:390] @ rows[385]))[:5] + 20
    assert found.ids == [f"i{place}" for place in expected]
    # All, of which the searched leaves or cells have a part.
    (found,) = opened.search(rows[385], k=500)
    assert sorted(found.ids) == sorted(f"i{place}" for place in range(20, 390))


@pytest.mark.skipif(bool(scann_problem()), reason="ScaNN cannot be used")
def test_an_open_search_forgets_the_embedding_of_a_photo_that_changed_after_it_was_added(tmp_path):
    rows = np.random.default_rng(0).normal(size=(402, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ids, new = np.array([f"{number}.jpg" for number in range(401)]), np.r_[np.arange(400), 401]
    index = index_folder.IndexFolder(str(tmp_path))
    (tmp_path / "search-1-x").mkdir()
    ScannIndex.build(rows[:400], ids=ids[:400], method="hashing").save(index.path("search-1-x"))
    version = index_folder.Version(1, "m", 16, (), 401, "", search="search-1-x")
    first = structure.opened(index, version, ids, rows[:401])
    for before in (None, first):
        found = structure.opened(index, version, ids, rows[new], before).search(rows[[401]], 1)
        assert ids[found.index[0, 0]] == "400.jpg" and found.similarity[0, 0] > 0.99


def test_a_large_index_without_scann_and_faiss_is_searched_exactly_and_says_so(tmp_path, monkeypatch, caplog):
    rows = np.eye(400, dtype=np.float32)
    index = index_folder.IndexFolder(str(tmp_path / "index"))
    os.makedirs(index.path("models"))
    part = index.write_part(index_folder.table_of({"id": pa.array(map(str, range(400)))}, rows), "m")
    monkeypatch.setattr(searchers, "TREE_FROM", 300)
    monkeypatch.setattr(searchers, "scann_problem", lambda: WITHOUT_SCANN)
    made = building.publish(index, None, "m", 400, [part], "", 400, 0.99).version
    assert made.search.startswith("search-1-")
    # Elsewhere there is no FAISS: no error, but a line.
    monkeypatch.setattr(searchers, "faiss_problem", lambda: "FAISS is not installed.")
    opened = structure.opened(index, made, np.array([str(row) for row in range(400)]), rows)
    assert isinstance(opened, ExactIndex)
    assert "Searched exactly, not by FAISS. FAISS is not installed." in caplog.text
    assert structure.added(index, dataclasses.replace(made, search=""), None, 400).search == ""
    assert "Searched exactly, not by ScaNN or FAISS. ScaNN is not installed. FAISS is not" in caplog.text


@pytest.mark.slow
def test_an_index_killed_at_any_moment_is_the_old_or_the_new_and_can_be_finished(tmp_path, model, embedder):
    photos = write_photos(tmp_path / "photos", images=200)
    flags = [f"--model={model}", f"--images={photos}", f"--index_dir={tmp_path / 'index'}"]
    code = "import sys, runpy; from tfrank.search import building; building.PART_ROWS = 32;"
    code += f"sys.argv = {['x', *flags]!r}; runpy.run_module('tfrank.search.command', run_name='__main__')"
    for seconds in (0.5, 1, 2):
        process = CommandLine("-c", code)
        while process.poll() is None and not list((tmp_path / "index").glob("*.parquet")):
            time.sleep(0.01)
        time.sleep(seconds / 5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "index" / "CURRENT").exists():
            assert len(search.open(tmp_path / "index")) == 600
    kept = sum(pq.read_metadata(path).num_rows for path in (tmp_path / "index").glob("*.parquet"))
    done = updated(tmp_path / "index", embedder, photos)
    assert done.kept >= min(kept, 600) > 0 and done.kept + done.embedded == 600
    assert_right(tmp_path / "index", embedder, photos)
