"""The search structure by FAISS: what is written is read back, and what somebody forged is refused."""

import hashlib
import json
import os
import re

import numpy as np
import pyarrow as pa
import pytest

from tfrank import search
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import faiss_index, searchers
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.exhaustive import recall_against_exact
from tfrank.search import building, index_folder


def large_index(folder, monkeypatch, rows=400):
    """An index that FAISS searches, and its only version."""
    monkeypatch.setattr(searchers, "TREE_FROM", 300)
    monkeypatch.setattr(searchers, "scann_problem", lambda: "ScaNN is not installed.")
    vectors = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = index_folder.IndexFolder(str(folder))
    os.makedirs(index.path("models"))
    ids = pa.array([f"i{row}" for row in range(rows)])
    part = index.write_part(index_folder.table_of({"id": ids, "path": ids, "label": ids}, vectors), "m")
    return index, vectors, building.publish(index, None, "m", 8, [part], "", rows, 0.99).version


def hostile_lists(folder, victim, vectors):
    """Writes FAISS' own file, whose lists lie in another file, with more rows than the index has."""
    faiss = pytest.importorskip("faiss")
    made = faiss.index_factory(8, "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    made.train(vectors)
    made.add(np.concatenate([vectors, vectors[:50]]))
    lists = faiss.OnDiskInvertedLists(made.nlist, made.code_size, str(folder / "made"))
    lists.merge_from(made.invlists, len(vectors) + 50)
    made.replace_invlists(lists, False)
    data = bytes(faiss.serialize_index(made))
    here, there = str(folder / "made").encode(), str(victim).encode()
    assert data.count(here) == 1 and len(there) == len(here)
    (folder / "faiss.index").write_bytes(data.replace(here, there))


def test_a_faiss_file_that_names_another_file_is_not_read_and_the_index_is_searched_exactly(
    tmp_path, monkeypatch, caplog
):
    index, vectors, version = large_index(tmp_path / "index", monkeypatch)
    folder, victim = tmp_path / "index" / version.search, tmp_path / "index" / version.search / "mine"
    victim.write_text("a line\n" * 40_000)
    hostile_lists(folder, victim, vectors)
    # As earlier versions of tfrank wrote an index: extra ids make them delete and add.
    ids = np.array([f"i{row}" for row in range(400)] + [f"x{row}" for row in range(50)])
    np.save(folder / "ids.npy", ids)
    np.save(folder / "numbers.npy", np.arange(450))
    names = ("faiss.index", "ids.npy", "numbers.npy")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    settings = {"cells": 4, "cells_to_search": 4, "k": 10, "recall": 1.0}
    files.write_json(str(folder / "faiss.json"), {"settings": settings, "sha256": digests})
    for path in folder.glob("faiss_*"):
        path.unlink()
    opened = search.open(index.folder)
    (found,) = opened.search(vectors[7], k=3)
    assert victim.read_text() == "a line\n" * 40_000
    assert found.ids[0] == "i7" and "is of another version of tfrank" in caplog.text
    # The next update makes a structure that can be read, though no image changed.
    new = building.publish(index, version, "m", 8, version.parts, "", 0, 0.99).version
    assert new.search.startswith("search-2-")
    assert not isinstance(search.open(index.folder)._structure, ExactIndex)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda folder: (folder / "cells.npy").write_bytes(b"\x93NUMPY"),
            "the checksum of cells.npy differs",
        ),
        (lambda folder: forged(folder, cells=np.full(400, 99)), "cells.npy names cells that do not exist"),
        (lambda folder: forged(folder, cells=np.full(3, 0)), "cells.npy and ids.npy do not fit each other"),
        (lambda folder: forged(folder, centres=np.zeros([20, 9], np.float32)), "centres.npy has other cells"),
        (
            lambda folder: forged(folder, ids=np.array(["a", None])),
            "ids.npy: an array does not hold what its header",
        ),
        (lambda folder: forged(folder, huge=True), "ids.npy: an array does not hold what its header"),
        (
            lambda folder: os.mkfifo(folder / "pipe") or forged(folder, pipe=True),
            "It is a link, pipe or device",
        ),
        (
            lambda folder: forged(folder, settings={"cells": True}),
            "`settings.cells`: expected a whole number",
        ),
        (lambda folder: forged(folder, extra="faiss.index"), "`sha256.faiss.index` is no field of it"),
    ],
)
def test_a_forged_faiss_structure_is_refused_in_one_line(tmp_path, monkeypatch, change, reason):
    index, _, version = large_index(tmp_path / "index", monkeypatch)
    change(tmp_path / "index" / version.search)
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        search.open(index.folder)
    assert "\n" not in str(caught.value)


def forged(folder, *, settings=(), extra="", huge=False, pipe=False, **arrays):
    """Replaces files of a FAISS structure, with their checksums."""
    path = folder / "faiss_cells.json"
    tree = json.loads(path.read_text())
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    if huge:
        with open(folder / "ids.npy", "wb") as file:
            header = {"shape": (2**40,), "fortran_order": False, "descr": "<U9"}
            np.lib.format.write_array_header_1_0(file, header)
    tree["sha256"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in tree["sha256"]
    }
    if pipe:
        os.rename(folder / "pipe", folder / "cells.npy")
    if extra:
        tree["sha256"][extra] = tree["sha256"]["ids.npy"]
    tree["settings"] |= dict(settings)
    path.write_text(json.dumps(tree))


def test_rows_of_a_faiss_structure_that_the_index_does_not_have_are_ignored(tmp_path, monkeypatch):
    index, vectors, version = large_index(tmp_path / "index", monkeypatch)
    folder = tmp_path / "index" / version.search
    ids, cells = np.load(folder / "ids.npy"), np.load(folder / "cells.npy")
    forged(folder, ids=np.append(ids[5:], "stranger"), cells=np.append(cells[5:], cells[0]))
    (found,) = search.open(index.folder).search(vectors[2], k=500)
    assert len(found.ids) == 400 and found.ids[0] == "i2" and "stranger" not in found.ids


def test_as_much_is_found_for_every_number_of_neighbors_of_rows_that_are_not_in_the_index():
    pytest.importorskip("faiss")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(150, 16))[rng.integers(150, size=3300)] + 0.3 * rng.normal(size=(3300, 16))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    index = faiss_index.FaissIndex.build(rows[:3000], ids=np.arange(3000).astype(str))
    for k in (10, 24, 100, 500, 600):
        found = index.search(rows[3000:], k)
        assert recall_against_exact(found, rows[3000:], rows[:3000], k) > 0.98
    assert index.settings.depths[0].cells_to_search < index.settings.depths[-1].cells_to_search < 55


@pytest.mark.parametrize("count", [1, 2, 9])
def test_rows_too_few_for_a_sample_are_all_searched(tmp_path, count):
    pytest.importorskip("faiss")
    rows = np.random.default_rng(3).normal(size=(count, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ids = np.arange(count).astype(str)
    faiss_index.FaissIndex.build(rows, ids=ids).save(str(tmp_path))
    found = faiss_index.FaissIndex.load(str(tmp_path), rows, ids).search(rows, 20)
    np.testing.assert_array_equal(found.index, np.argsort(-(rows @ rows.T), axis=1))


def test_the_index_is_searched_also_where_pytorchs_part_of_faiss_has_put_its_own_search(monkeypatch):
    faiss = pytest.importorskip("faiss")
    rows = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = faiss_index.FaissIndex.build(rows, ids=np.arange(3000).astype(str))
    wanted = index.search(rows[:9], 5)
    # As `import faiss.contrib.torch_utils` does, which pytorch-metric-learning imports.
    original = faiss.IndexIVFFlat.search
    monkeypatch.setattr(faiss.IndexIVFFlat, "search_numpy", original, raising=False)
    monkeypatch.setattr(faiss.IndexIVFFlat, "search", lambda self, rows, k: original(self, rows, k))
    np.testing.assert_array_equal(index.search(rows[:9], 5).index, wanted.index)
