"""Neighbours: exact search against brute force in NumPy, in tiles and as on a GPU; when ScaNN cannot run."""

import os
import pathlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import tfrank
from tests.evaluation import ROWS, every_rows, every_search
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import by_name, exhaustive, scann_probe, top_k
from tfrank.evaluation.nearest.exhaustive import exact, recall_against_exact
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex

KS = (1, 5, 59, 60, 75)
DISTINCT, REPEATED = ROWS["distinct"], ROWS["repeated"]


def brute_force(queries, gallery, k, self_index=None):
    """As `exact`: each query's whole gallery sorted, ties in the order of the gallery."""
    k = min(k, len(gallery))
    index = np.full([len(queries), k], -1)
    similarity = np.full([len(queries), k], -np.inf)
    for q, s in enumerate(queries @ gallery.T):
        nearest = np.argsort(-s, kind="stable")
        if self_index is not None:
            nearest = nearest[nearest != self_index[q]]
        nearest = nearest[:k]
        index[q, : len(nearest)], similarity[q, : len(nearest)] = nearest, s[nearest]
    return index, similarity


def assert_neighbors(got, wanted):
    index, similarity = wanted
    np.testing.assert_array_equal(got.index, index)
    np.testing.assert_allclose(got.similarity, similarity, atol=1e-6)
    assert got.index.dtype == np.int64 and got.similarity.dtype == np.float32


@pytest.fixture(params=[None, "/CPU:0"], ids=["in tiles", "on a device"])
def device(request, monkeypatch):
    """The nearest chosen tile by tile, or as on a GPU."""
    monkeypatch.setattr(exhaustive, "gpu", lambda: request.param)


def small_pieces(monkeypatch, block=2**21, tile=2**13, slab=2**26, groups=512):
    monkeypatch.setattr(exhaustive, "BLOCK_SIMILARITIES", block)
    monkeypatch.setattr(exhaustive, "GPU_SIMILARITIES", block)
    monkeypatch.setattr(exhaustive, "TILE_ROWS", tile)
    monkeypatch.setattr(exhaustive, "SLAB_VALUES", slab)
    monkeypatch.setattr(top_k, "GROUPS", groups)


@every_rows
@pytest.mark.parametrize("pieces", [{}, {"block": 420, "tile": 7, "slab": 400, "groups": 3}, {"block": 1}])
def test_exact_search_is_brute_force_in_any_pieces(device, monkeypatch, rows, pieces):
    small_pieces(monkeypatch, **pieces)
    own = np.arange(len(rows))
    for k in KS:
        assert_neighbors(exact(rows, rows, k, own), brute_force(rows, rows, k, own))
        assert_neighbors(exact(rows[:9], rows, k), brute_force(rows[:9], rows, k))


@pytest.mark.parametrize("k", [1, 10, 150, 700, 2999, 3000])
@pytest.mark.parametrize("order", ["mixed", "nearest first", "nearest last"])
def test_the_nearest_of_many_tied_rows_come_in_the_order_of_the_gallery(device, monkeypatch, k, order):
    small_pieces(monkeypatch, tile=1100, slab=16 * 2300)
    gallery = np.random.default_rng(3).choice([-0.25, 0.25], size=(3000, 16)).astype(np.float32)
    if order != "mixed":
        gallery = gallery[np.argsort(gallery @ gallery[0] * (-1 if order == "nearest first" else 1))]
    own = np.array([5, -1, 2999, 0, 1, 2, 3])
    assert_neighbors(exact(gallery[:7], gallery, k, own), brute_force(gallery[:7], gallery, k, own))


def test_neighbors_of_a_hand_worked_gallery(device):
    gallery = np.array([[0.6, 0.8], [1, 0], [0, 0], [-1, 0], [0.6, 0.8]])
    got = exact(np.array([[1.0, 0.0], [-0.8, 0.6]]), gallery, 6, np.array([1, -1]))
    np.testing.assert_array_equal(got.index, [[0, 4, 2, 3, -1], [3, 0, 2, 4, 1]])
    wanted = [[0.6, 0.6, 0, -1, -np.inf], [0.8, 0, 0, 0, -0.8]]
    np.testing.assert_allclose(got.similarity, wanted, atol=1e-7)


def test_zero_and_minus_zero_are_tied():
    minus_first = top_k.pack(np.float32([-0.0, 0.0]), np.array([0, 1]))
    assert minus_first[0] < minus_first[1]


def test_rows_of_zeros_are_as_similar_to_everything(device):
    got = exact(-np.eye(4), np.zeros([5, 4]), 3)
    np.testing.assert_array_equal(got.index, [[0, 1, 2]] * 4)
    np.testing.assert_array_equal(got.similarity, np.zeros([4, 3]))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_any_type_and_order_of_memory_is_searched_in_float32(device, dtype):
    rows = (4 * ROWS["tied"]).astype(dtype)
    wanted = brute_force(*[4 * ROWS["tied"]] * 2, 5)
    assert_neighbors(exact(np.asfortranarray(rows), np.asfortranarray(rows), 5), wanted)
    assert_neighbors(exact(rows[::-1][::-1], rows, 5), wanted)


def test_a_memory_map_is_never_held_as_a_whole(monkeypatch, tmp_path):
    small_pieces(monkeypatch, block=2**14, tile=2**10, slab=2**14)
    rows = np.random.default_rng(0).choice([-1, 1], size=(2**15, 64)).astype(np.float16)
    np.save(tmp_path / "rows.npy", rows)
    gallery = np.load(tmp_path / "rows.npy", mmap_mode="r")
    exact(gallery[:8], gallery[:8], 3)  # What is imported on the way.
    tracemalloc.start()
    got = exact(gallery[-20:], gallery, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20 < gallery.nbytes
    assert_neighbors(got, brute_force(np.float32(rows[-20:]), np.float32(rows), 3))


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
        by_name.search(search)(**arguments)


@every_search
def test_only_queries_that_stand_in_the_gallery_are_left_out_of_it(search):
    own = np.where(np.arange(60) % 3 == 0, np.arange(60), -1)
    got = by_name.search(search)(DISTINCT, DISTINCT, 4, own)
    assert_neighbors(got, brute_force(DISTINCT, DISTINCT, 4, own))


@every_search
def test_duplicates_of_the_query_stay_and_the_query_itself_goes(search):
    own = np.arange(60)
    got = by_name.search(search)(REPEATED, REPEATED, 3, own)
    wanted = [[j for j in range(q % 15, 60, 15) if j != q] for q in range(60)]
    np.testing.assert_array_equal(got.index, wanted)
    np.testing.assert_array_equal(got.similarity, 1)


@every_search
@pytest.mark.parametrize("k", [3, 4, 6])
def test_places_that_the_gallery_cannot_fill_hold_no_neighbor(search, k):
    gallery = DISTINCT[:4]
    got = by_name.search(search)(gallery, gallery, k, np.arange(4))
    assert got.index.shape == got.similarity.shape == (4, min(k, 4))
    assert np.all(np.sort(got.index[:, :3], axis=1) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    assert np.all(got.index[:, 3:] == -1) and np.all(got.similarity[:, 3:] == -np.inf)
    assert_neighbors(got, brute_force(gallery, gallery, k, np.arange(4)))


@every_rows
def test_scann_finds_what_exact_search_finds(rows):
    own = np.arange(len(rows))
    for k in KS:
        assert_neighbors(by_name.scann(rows, rows, k, own), exhaustive.exact(rows, rows, k, own))
        assert_neighbors(by_name.scann(rows[:9], rows, k), exhaustive.exact(rows[:9], rows, k))


FAKES = {
    "raise ImportError('undefined symbol: _ZN10tensorflow')": "undefined symbol: _ZN10tensorflow",
    "import os; os.abort()": "importing it ends the process by SIGABRT",
    "import os, signal; os.kill(os.getpid(), signal.SIGILL)": "importing it ends the process by SIGILL",
}


SEARCHES_WITH_FAKES = """
import sys, numpy as np
from tfrank.evaluation.nearest import by_name, scann_probe
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    scann_probe._tried.cache_clear()
    for _ in range(2):
        found = by_name.search("scann")(np.eye(3), np.eye(3), 1)
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
    "scann": by_name.scann,
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
    found = by_name.search("scann")(DISTINCT, DISTINCT, 3)
    scann_probe._tried.cache_clear()
    assert_neighbors(found, brute_force(DISTINCT, DISTINCT, 3))
    assert "not installed). On Linux on x86-64: pip install 'scann>=1.4.2,<1.5'" in caplog.text


def test_the_usable_search_is_the_one_asked_for_or_exact_and_why(monkeypatch, caplog):
    monkeypatch.setattr(by_name, "scann_problem", lambda: "")
    assert by_name.usable("scann") == ("scann", "")
    monkeypatch.setattr(by_name, "scann_problem", lambda: "ScaNN is away.")
    assert by_name.usable("scann") == ("exact", "Searched exactly, not by ScaNN. ScaNN is away.")
    assert by_name.usable("exact") == ("exact", "")
    assert by_name.search("exact") is exact and not caplog.text
    for _ in range(2):
        assert by_name.search("scann") is exact
    assert caplog.messages == ["Searched exactly, not by ScaNN. ScaNN is away."]


def test_a_search_is_built_to_the_recall_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(by_name, "scann_problem", lambda: "")
    search = by_name.search("scann", target_recall=0.5)
    assert search.func is by_name.scann and search.keywords == {"target_recall": 0.5}


@pytest.mark.parametrize(
    "program, reason",
    [
        ("pass", ""),
        ("raise ImportError('no such symbol')", "ImportError: no such symbol"),
        ("import sys; sys.exit(3)", "status 3"),
    ],
)
def test_why_a_program_fails_is_one_line(program, reason):
    assert scann_probe._reason([sys.executable, "-c", program]) == reason


def test_a_scann_that_takes_too_long_to_import_is_not_absent_and_is_tried_again(monkeypatch, tmp_path):
    (tmp_path / "scann.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scann", raising=False)
    scann_probe._tried.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(scann_probe, "SECONDS", 0.5)
        name, why = by_name.usable("scann")
    assert name == "exact" and "may be there: importing it had not ended after 0.5 seconds" in why
    assert "cannot be imported" not in why and "Try again" in why
    (tmp_path / "scann.py").write_text("")
    assert by_name.usable("scann") == ("scann", "")
    scann_probe._tried.cache_clear()


def test_recall_against_exact_is_the_share_of_the_nearest_that_were_found():
    nearest = exact(DISTINCT, DISTINCT, 10, np.arange(60))
    half = Neighbors(np.where(np.arange(10) < 5, nearest.index, -1), nearest.similarity)
    assert recall_against_exact(nearest, DISTINCT, DISTINCT, 10, np.arange(60)) == 1
    assert recall_against_exact(half, DISTINCT, DISTINCT, 10, np.arange(60)) == 0.5
    assert recall_against_exact(half, DISTINCT, DISTINCT, 5, np.arange(60)) == 1
    only_first = nearest.index.copy()
    only_first[1:] = -1
    sampled = [
        recall_against_exact(nearest._replace(index=only_first), *[DISTINCT] * 2, 10, np.arange(60), **draw)
        for draw in ({}, {"sample": 1, "seed": 0}, {"sample": 1, "seed": 0})
    ]
    assert sampled[0] == pytest.approx(1 / 60) and sampled[1] == sampled[2] in (0, 1)


def test_any_of_the_rows_that_are_tied_at_the_last_place_is_right_but_not_twice_nor_the_query_itself():
    rows, own = REPEATED[:, :16], np.array([0])

    def recall(*found):
        found = Neighbors(np.array([found]), np.zeros([1, len(found)], np.float32))
        return recall_against_exact(found, rows[:1], rows, len(found[0][0]), own)

    assert recall(45, 30) == recall(15, 45) == 1
    assert recall(45, 45) == recall(0, 15) == recall(15, -1) == recall(15, 1) == 0.5


def test_an_unknown_search_is_refused():
    with pytest.raises(InputError, match=r'argument `neighbors`\. .*Did you mean "exact"\?'):
        by_name.search("exakt")
    with pytest.raises(InputError, match=r'argument `neighbors`\. .*Did you mean "exact"\?'):
        by_name.usable("exakt")
