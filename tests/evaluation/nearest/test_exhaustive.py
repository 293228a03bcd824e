"""Exact search against brute force in NumPy, in tiles and as on a GPU; what is merged; measured recall."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation import ROWS, every_rows
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import exhaustive, top_k
from tfrank.evaluation.nearest.exhaustive import exact, merge_neighbors, recall_against_exact
from tfrank.evaluation.nearest.neighbors import Neighbors

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


# Similarities are exact, and most are tied.
TIES = np.concatenate([ROWS["tied"], ROWS["repeated"]])


def assert_same(got, wanted):
    np.testing.assert_array_equal(got.index, wanted.index)
    np.testing.assert_array_equal(got.similarity, wanted.similarity)
    assert got.index.dtype == np.int64 and got.similarity.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(TIES)), max_size=8),
    k=st.integers(1, 130),
    own=st.lists(st.integers(-1, len(TIES) - 1), min_size=7, max_size=7),
    data=st.data(),
)
def test_the_shards_of_a_gallery_with_ties_give_what_the_whole_gives(cuts, k, own, data):
    own, queries = np.array(own), TIES[::20][:7]
    queries, own = queries[: len(own)], own[: len(queries)]
    wanted = exact(queries, TIES, k, own)
    first_rows = [0, *sorted(cuts)]
    shards = np.split(TIES, first_rows[1:])
    order = data.draw(st.permutations([n for n, shard in enumerate(shards) if len(shard)]))
    parts = []
    for n in order:
        here = (own >= first_rows[n]) & (own < first_rows[n] + len(shards[n]))
        parts.append(exact(queries, shards[n], k, np.where(here, own - first_rows[n], -1)))
    assert_same(merge_neighbors(parts, [first_rows[n] for n in order], k), wanted)


def test_two_hand_worked_shards_are_merged():
    parts = [
        Neighbors(np.array([[2, 0, -1]]), np.float32([[0.5, 0.25, -np.inf]])),
        Neighbors(np.array([[1, 0, -1]]), np.float32([[0.75, 0.5, -np.inf]])),
    ]
    got = merge_neighbors(parts, [0, 3], 3)
    assert_same(got, Neighbors(np.array([[4, 2, 3]]), np.float32([[0.75, 0.5, 0.5]])))
    more = merge_neighbors(parts, [0, 3], 8)
    assert more.index.tolist() == [[4, 2, 3, 0, -1, -1]]
    assert np.all(more.similarity[:, 4:] == -np.inf)


def test_what_cannot_be_merged_is_named():
    part = exact(TIES[:2], TIES, 3)
    with pytest.raises(InputError, match=r"`first_rows`. Expected one row for each of 1 parts"):
        merge_neighbors([part], [0, 5], 3)
    with pytest.raises(InputError, match=r"`parts`. Expected neighbours of the same queries"):
        merge_neighbors([part, exact(TIES[:3], TIES, 3)], [0, 5], 3)
    with pytest.raises(InputError, match="`k`"):
        merge_neighbors([part], [0], 0)
