"""Indexes that hold codes of their embeddings: they follow changes as others do, and say what is searched."""

import json
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from tests.search import write_photo, write_photos
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import coded_index
from tfrank.evaluation.nearest.coded_index import CodedIndex
from tfrank.evaluation.nearest.codes import CODES
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.search import building, index_folder
from tfrank.search.images import listed_images
from tfrank.search.updating import update_from


def unit(rows, dim=64):
    drawn = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


ROWS = unit(1400)


def published(index, places, old, storage="", target_recall=None):
    """A version of these rows, in two files."""
    parts = []
    for some in np.array_split(places, 2):
        ids = pa.array([f"i{place}" for place in some])
        columns = {"id": ids, "path": ids, "label": pa.array([f"class {place % 3}" for place in some])}
        parts.append(index.write_part(index_folder.table_of(columns, ROWS[some]), "m"))
    changed = len(set(places) ^ set(range(1300))) if old else len(places)
    about = (index, old, "m", 64, parts, "", changed, target_recall)
    return building.publish(*about, storage=storage).version


def nearest(query, places, k):
    return [f"i{place}" for place in places[np.argsort(-(ROWS[places] @ query))[:k]]]


def shared(found, wanted):
    return len(set(found) & set(wanted)) / len(wanted)


@pytest.mark.parametrize("storage", CODES)
def test_codes_follow_changes_conditions_ids_and_near_copies(tmp_path, storage, capsys):
    index = index_folder.IndexFolder(str(tmp_path / "index"))
    os.makedirs(index.path("models"))
    first = published(index, np.arange(1300), None, storage)
    printed = capsys.readouterr().out
    size = {"float16": 128, "int8": 64, "binary": 8}[storage]
    assert f"{storage}: {size} bytes of memory a photo, and 256 on disk. Recall@1 " in printed
    assert "overlap@10 with exact search 9" in printed or "overlap@10 with exact search 100" in printed
    # The same rows in other places.
    moved = published(index, np.arange(1300)[::-1], first)
    assert moved.search == first.search
    assert search.open(index.folder).search(ROWS[700], k=1)[0].ids == ["i700"]
    # Some change: codes stay, and those of the new ones are added.
    present = np.arange(30, 1340)
    second = published(index, present, moved)
    assert (second.search, second.changed, second.storage) == (first.search, 70, storage)
    opened = search.open(index.folder)
    assert not isinstance(opened.embeddings, np.ndarray) and opened._contents.rows is None
    shares = []
    for row in (40, 700, 1305, 1339):
        (found,) = opened.search(ROWS[row], k=10)
        assert found.ids[0] == f"i{row}" and found.similarities[0] == pytest.approx(1, abs=1e-6)
        shares.append(shared(found.ids, nearest(ROWS[row], present, 10)))
        (found,) = opened.search(ROWS[row], k=10, where={"label": "class 1"})
        shares.append(shared(found.ids, nearest(ROWS[row], present[present % 3 == 1], 10)))
        (found,) = opened.search(f"i{row}", k=9)
        assert f"i{row}" not in found.ids
        shares.append(shared(found.ids, nearest(ROWS[row], present[present != row], 9)))
    assert np.mean(shares) > 0.95
    assert (found.storage, found.version) == (storage, 3)
    assert found.searched.startswith(f"The search, by {storage} codes, finds ")
    # For so many it is exact.
    (found,) = opened.search(ROWS[1305], k=1310)
    assert found.ids == nearest(ROWS[1305], present, 1310)
    assert opened.duplicates(0.999) == []
    # More changes: codes are made anew.
    third = published(index, np.arange(200, 1400), second)
    assert third.search.startswith("search-4-") and third.storage == storage
    assert search.open(index.folder).search(ROWS[1399], k=1)[0].ids == ["i1399"]


def test_an_index_changes_its_storage_and_resumes_keeping_it(tmp_path, embedder, capsys):
    photos = write_photos(tmp_path / "photos")
    folder = str(tmp_path / "index")
    model = embedder.folder
    update_from(folder, str(photos), model=model)
    exact = search.open(folder)
    update_from(folder, str(photos), storage="binary")
    assert "12 unchanged" in capsys.readouterr().out
    binary = search.open(folder)
    assert binary.version.storage == "binary" and isinstance(binary._structure, CodedIndex)
    for query in exact.ids[:3]:
        assert binary.search(query)[0].ids == exact.search(query)[0].ids
    # What is added, as by the server, and what is removed keeps the storage.
    write_photo(photos / "new.jpg", 77)
    new = [one for one in listed_images(str(photos)) if one.id == "new.jpg"]
    done = building.update(folder, embedder, new, remove_others=False, quiet=True)
    assert done.version.storage == "binary" and search.open(folder).search("new.jpg", k=3)[0].ids
    assert building.remove(folder, ["new.jpg"]).storage == "binary"
    update_from(folder, str(photos), storage="float32")
    assert isinstance(search.open(folder)._structure, ExactIndex)
    assert search.open(folder).search(exact.ids[0])[0].searched == "All images are compared exactly."


def test_a_binary_index_without_its_full_vectors_is_refused_until_it_is_made_anew(tmp_path, embedder):
    photos = write_photos(tmp_path / "photos")
    folder = str(tmp_path / "index")
    update_from(folder, str(photos), model=embedder.folder, storage="binary")
    version = index_folder.IndexFolder(folder).current()
    os.remove(os.path.join(folder, version.search, coded_index.VECTORS))
    with pytest.raises(
        InputError, match=re.escape("has no vectors.f32. Codes are searched together")
    ) as caught:
        search.open(folder)
    assert "\n" not in str(caught.value) and "Run tfrank index again" in str(caught.value)
    update_from(folder, str(photos))
    assert len(search.open(folder).search("class 0/0.jpg")[0].ids) == 10


def test_an_unknown_storage_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(InputError, match=r'argument `storage`.*Did you mean "binary"'):
        update_from(str(tmp_path / "index"), str(tmp_path / "none"), storage="binari")
    assert not (tmp_path / "index").exists()


def test_another_recall_alone_builds_the_search_anew_and_later_versions_keep_it(tmp_path):
    index = index_folder.IndexFolder(str(tmp_path / "index"))
    os.makedirs(index.path("models"))
    first = published(index, np.arange(1300), None, "binary")
    second = published(index, np.arange(1300), first, target_recall=0.6)
    assert second.search != first.search and second.target_recall == 0.6
    at_10 = [search.open(index.folder)._structure.settings.depths[0].recall]
    third = published(index, np.arange(200, 1400), second)
    assert third.search != second.search and third.target_recall == 0.6
    at_10.append(search.open(index.folder)._structure.settings.depths[0].recall)
    assert max(at_10) < 0.7
    # A version of before it was kept counts as one of 0.99.
    path = tmp_path / "index" / "versions" / "3.json"
    fields = json.loads(path.read_text())
    del fields["target_recall"]
    path.write_text(json.dumps(fields))
    assert published(index, np.arange(200, 1400), index.current(), target_recall=0.99) == index.current()
    with pytest.raises(InputError, match="argument `target_recall`"):
        published(index, np.arange(1300), index.current(), target_recall=0)


def test_an_index_of_before_there_was_a_choice_opens_as_float32(tmp_path, embedder):
    folder = str(tmp_path / "index")
    update_from(folder, str(write_photos(tmp_path / "photos")), model=embedder.folder)
    (path,) = (tmp_path / "index" / "versions").iterdir()
    fields = json.loads(path.read_text())
    assert fields.pop("storage") == "float32"
    path.write_text(json.dumps(fields))
    opened = search.open(folder)
    assert opened.version.storage == "float32" and opened.search("class 0/0.jpg")[0].storage == "float32"


@pytest.mark.parametrize("storage", ["int8", "binary"])
def test_a_picture_under_the_id_of_one_that_was_removed_is_found_by_what_it_shows(
    tmp_path, embedder, storage
):
    photos, folder = write_photos(tmp_path / "photos", classes=3, images=20), str(tmp_path / "index")
    listed = listed_images(str(photos))
    building.update(folder, embedder, listed, root=str(photos), quiet=True, storage=storage)
    taken, other = listed[0].id, listed[-1].id
    building.remove(folder, [taken])
    shutil.copy(photos / other, photos / taken)
    (back,) = [one for one in listed_images(str(photos)) if one.id == taken]
    building.update(folder, embedder, [back], root=str(photos), remove_others=False, quiet=True)
    (found,) = search.open(folder).search(str(photos / other), k=2)
    assert set(found.ids) == {taken, other}
    assert found.similarities == pytest.approx([1, 1], abs=1e-5)
