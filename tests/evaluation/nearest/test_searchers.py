"""The searches by name: each against brute force in NumPy; which of them can run; when ScaNN cannot."""

import functools
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tfrank
from tests.evaluation import every_rows, every_search
from tests.evaluation.nearest.test_exhaustive import (
    DISTINCT,
    KS,
    REPEATED,
    assert_neighbors,
    brute_force,
    small_pieces,
)
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import exhaustive, scann_probe, searchers
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.exhaustive import exact, recall_against_exact
from tfrank.evaluation.nearest.scann_index import ScannIndex


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"gallery": np.where(np.arange(240).reshape(60, 4) == 33, np.nan, 0.5)},
            "Row 8 of `gallery` is not",
        ),
        ({"queries": np.where(np.arange(8).reshape(2, 4) == 7, np.inf, 0.5)}, "Row 1 of `queries` is not"),
        ({"gallery": np.full([60, 4], 1e300)}, "Row 0 of `gallery` is not finite in float32"),
        ({"gallery": np.zeros([0, 4])}, "`gallery`. Expected .*at least one row.*shape \\(0, 4\\)"),
        ({"queries": np.zeros([0, 4])}, "`queries`. Expected .*at least one row"),
        ({"queries": np.zeros(4)}, "`queries`. Expected `\\[rows, dim\\]`"),
        ({"queries": np.full([2, 4], "a")}, "`queries`. Expected .* real numbers"),
        ({"queries": np.zeros([2, 5])}, "Queries have 5 dimensions and the gallery has 4"),
        ({"k": 0}, "`k`. Expected an integer of at least 1"),
        ({"self_index": np.array([0, 60])}, "`self_index`. Expected rows below 60"),
        ({"self_index": np.array([0])}, "`self_index`. Expected a gallery row, or -1, of each of 2"),
        ({"self_index": np.array([0.0, 1.0])}, "`self_index`. Expected a gallery row"),
    ],
)
@every_search
def test_what_cannot_be_searched_is_named(monkeypatch, search, changed, message):
    small_pieces(monkeypatch, slab=20)
    arguments = {"queries": np.full([2, 4], 0.5), "gallery": np.full([60, 4], 0.5), "k": 3, **changed}
    message = message.replace("`gallery` is", "`(gallery|embeddings)` is")
    with pytest.raises(InputError, match=message.replace("`gallery`.", "`(gallery|embeddings)`.")):
        searchers.find(search, **arguments)


@every_search
def test_only_queries_that_stand_in_the_gallery_are_left_out_of_it(search):
    own = np.where(np.arange(60) % 3 == 0, np.arange(60), -1)
    got = searchers.find(search, DISTINCT, DISTINCT, 4, own)
    assert_neighbors(got, brute_force(DISTINCT, DISTINCT, 4, own))


@every_search
def test_duplicates_of_the_query_stay_and_the_query_itself_goes(search):
    own = np.arange(60)
    got = searchers.find(search, REPEATED, REPEATED, 3, own)
    wanted = [[j for j in range(q % 15, 60, 15) if j != q] for q in range(60)]
    np.testing.assert_array_equal(got.index, wanted)
    np.testing.assert_array_equal(got.similarity, 1)


@every_search
@pytest.mark.parametrize("k", [3, 4, 6])
def test_places_that_the_gallery_cannot_fill_hold_no_neighbor(search, k):
    gallery = DISTINCT[:4]
    got = searchers.find(search, gallery, gallery, k, np.arange(4))
    assert got.index.shape == got.similarity.shape == (4, min(k, 4))
    assert np.all(np.sort(got.index[:, :3], axis=1) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    assert np.all(got.index[:, 3:] == -1) and np.all(got.similarity[:, 3:] == -np.inf)
    assert_neighbors(got, brute_force(gallery, gallery, k, np.arange(4)))


@every_rows
def test_scann_finds_what_exact_search_finds(rows):
    own = np.arange(len(rows))
    for k in KS:
        assert_neighbors(searchers.find("scann", rows, rows, k, own), exhaustive.exact(rows, rows, k, own))
        assert_neighbors(searchers.find("scann", rows[:9], rows, k), exhaustive.exact(rows[:9], rows, k))


FAKES = {
    "raise ImportError('undefined symbol: _ZN10tensorflow')": "undefined symbol: _ZN10tensorflow",
    "import os; os.abort()": "importing it ends the process by SIGABRT",
    "import os, signal; os.kill(os.getpid(), signal.SIGILL)": "importing it ends the process by SIGILL",
}


SEARCHES_WITH_FAKES = """
import sys, numpy as np
from tfrank.evaluation.nearest import searchers, scann_probe
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    scann_probe._tried.cache_clear()
    for _ in range(2):
        found = searchers.find("scann", np.eye(3), np.eye(3), 1)
    assert found.index.tolist() == [[0], [1], [2]]
    sys.path.remove(folder)
"""


@pytest.mark.slow
def test_where_scann_cannot_be_imported_search_is_exact_and_each_reason_is_printed_once(tmp_path):
    for number, program in enumerate(FAKES):
        (tmp_path / f"{number}" / "scann").mkdir(parents=True)
        (tmp_path / f"{number}" / "scann" / "__init__.py").write_text(program)
    root = str(pathlib.Path(tfrank.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SEARCHES_WITH_FAKES, *(str(tmp_path / f"{number}") for number in range(3))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("Searched exactly")]
    for line, reason in zip(lines, FAKES.values(), strict=True):
        assert line.startswith("Searched exactly, not by ScaNN. ScaNN cannot be imported (")
        assert reason in line and "pip install 'scann>=1.4.2,<1.5'" in line


ALL_ROADS = {
    "exact": exact,
    "scann": functools.partial(searchers.find, "scann"),
    "tree": lambda queries, gallery, k: ScannIndex.build(gallery, k=k, method="tree").search(queries, k),
    "grown": lambda queries, gallery, k: _grown(gallery).search(queries, k),
}


def _grown(gallery):
    """An index of which ScaNN holds the first half."""
    index = ScannIndex.build(gallery[:30], method="hashing")
    index.add(gallery[30:], np.arange(30, len(gallery)))
    return index


@pytest.mark.parametrize("road", ALL_ROADS)
@pytest.mark.parametrize("k", [10**9, 2**40])
def test_more_neighbors_than_rows_take_no_more_memory_than_all_rows(road, k):
    found, wanted = ALL_ROADS[road](DISTINCT[:7], DISTINCT, k), exact(DISTINCT[:7], DISTINCT, 60)
    np.testing.assert_array_equal(found.index, wanted.index)
    np.testing.assert_allclose(found.similarity, wanted.similarity, atol=1e-6)
    assert recall_against_exact(found, DISTINCT[:7], DISTINCT, k) == 1


def test_without_scann_the_line_says_what_to_do(monkeypatch, caplog):
    scann_probe._tried.cache_clear()
    monkeypatch.setitem(sys.modules, "scann", None)
    found = searchers.find("scann", DISTINCT, DISTINCT, 3)
    scann_probe._tried.cache_clear()
    assert_neighbors(found, brute_force(DISTINCT, DISTINCT, 3))
    assert "not installed). On Linux on x86-64: pip install 'scann>=1.4.2,<1.5'" in caplog.text


def test_the_usable_search_is_the_one_asked_for_or_exact_and_why(monkeypatch, caplog):
    monkeypatch.setattr(searchers, "scann_problem", lambda: "")
    assert searchers.usable("scann") == ("scann", "")
    monkeypatch.setattr(searchers, "scann_problem", lambda: "ScaNN is away.")
    assert searchers.usable("scann") == ("exact", "Searched exactly, not by ScaNN. ScaNN is away.")
    assert searchers.usable("exact") == ("exact", "")
    assert_neighbors(searchers.find("exact", DISTINCT, DISTINCT, 3), exact(DISTINCT, DISTINCT, 3))
    assert not caplog.text
    for _ in range(2):
        assert_neighbors(searchers.find("scann", DISTINCT, DISTINCT, 3), exact(DISTINCT, DISTINCT, 3))
    assert caplog.messages == ["Searched exactly, not by ScaNN. ScaNN is away."]


def test_a_search_is_built_to_the_recall_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(searchers, "scann_problem", lambda: "")
    built = []
    index = ExactIndex(DISTINCT, np.arange(60))
    monkeypatch.setattr(index, "search", lambda *_: exact(DISTINCT, DISTINCT, 3))
    monkeypatch.setattr(searchers.ScannIndex, "build", lambda _, **options: built.append(options) or index)
    searchers.find("scann", DISTINCT, DISTINCT, 3, target_recall=0.5)
    assert built[0]["target_recall"] == 0.5 and built[0]["k"] == 3 and built[0]["queries"] is DISTINCT


def test_an_unknown_search_is_refused():
    with pytest.raises(InputError, match=r'argument `search`\. .*Did you mean "exact"\?'):
        searchers.find("exakt", DISTINCT, DISTINCT, 3)
    with pytest.raises(InputError, match=r'argument `search`\. .*Did you mean "exact"\?'):
        searchers.usable("exakt")


@pytest.mark.parametrize("name", searchers.SEARCHERS)
def test_each_searcher_is_built_searched_and_saved_alike(tmp_path, name):
    if problem := searchers.usable(name)[1]:
        pytest.skip(problem)
    rows = np.concatenate([DISTINCT] * 2)[:, ::-1].copy()
    ids = np.array([f"image {row}" for row in range(120)])
    built = searchers.SEARCHERS[name].build(rows, ids=ids, target_recall=1.0)
    assert_neighbors(built.search(rows[:9], 1), exact(rows[:9], rows, 1))
    assert built.ids.tolist() == ids.tolist()
    assert all(depth.recall == 1 for depth in built.settings.depths)
    built.save(str(tmp_path / name))
    assert searchers.name_of(str(tmp_path / name)) == {"exact": "scann"}.get(name, name)
    if name in ("exact", "scann"):
        loaded = ScannIndex.load(str(tmp_path / name))
        assert_neighbors(loaded.search(rows[:9], 1), exact(rows[:9], rows, 1))
    assert searchers.name_of(str(tmp_path)) == ""


def test_few_rows_are_searched_exactly_and_many_by_the_first_that_can_run(monkeypatch, caplog):
    monkeypatch.setattr(searchers, "scann_problem", lambda: "No ScaNN here.")
    monkeypatch.setattr(searchers, "faiss_problem", lambda: "")
    assert searchers.for_rows(searchers.TREE_FROM - 1, "scann", "faiss") == "exact" and not caplog.text
    assert searchers.for_rows(searchers.TREE_FROM, "scann", "faiss") == "faiss" and not caplog.text
    assert searchers.for_rows(searchers.TREE_FROM, "scann") == "exact"
    assert "Searched exactly, not by ScaNN. No ScaNN here." in caplog.text
    monkeypatch.setattr(searchers, "faiss_problem", lambda: "Nor FAISS.")
    assert searchers.for_rows(searchers.TREE_FROM, "scann", "faiss") == "exact"
    assert "Searched exactly, not by ScaNN or FAISS. No ScaNN here. Nor FAISS." in caplog.text
