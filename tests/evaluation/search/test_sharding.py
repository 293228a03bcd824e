"""A gallery in shards gives what it gives as a whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation import ROWS
from tfrank.common.checks import InputError
from tfrank.evaluation.search.by_name import scann
from tfrank.evaluation.search.exhaustive import exact, merge_neighbors
from tfrank.evaluation.search.neighbors import Neighbors
from tfrank.evaluation.search.sharding import search_shards

# Similarities are exact, and most are tied.
GALLERY = np.concatenate([ROWS["tied"], ROWS["repeated"]])


def assert_same(got, wanted):
    np.testing.assert_array_equal(got.index, wanted.index)
    np.testing.assert_array_equal(got.similarity, wanted.similarity)
    assert got.index.dtype == np.int64 and got.similarity.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(GALLERY)), max_size=8),
    k=st.integers(1, 130),
    own=st.lists(st.integers(-1, len(GALLERY) - 1), min_size=7, max_size=7),
    data=st.data(),
)
def test_any_cutting_of_a_gallery_with_ties_gives_what_the_whole_gives(cuts, k, own, data):
    own, queries = np.array(own), GALLERY[::20][:7]
    queries, own = queries[: len(own)], own[: len(queries)]
    wanted = exact(queries, GALLERY, k, own)
    first_rows = [0, *sorted(cuts)]
    shards = np.split(GALLERY, first_rows[1:])
    assert_same(search_shards(queries, shards, k, own), wanted)
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


@pytest.mark.parametrize("search", [exact, scann])
def test_shards_on_the_disk_are_searched_one_after_another(tmp_path, search):
    shards = np.split(ROWS["distinct"], [10, 10, 33])
    for n, shard in enumerate(shards):
        np.save(tmp_path / f"{n}.npy", shard)
    paths = (tmp_path / f"{n}.npy" for n in range(4))
    own = np.arange(60)
    got = search_shards(ROWS["distinct"], paths, 7, own, search)
    wanted = exact(ROWS["distinct"], ROWS["distinct"], 7, own)
    np.testing.assert_array_equal(got.index, wanted.index)
    np.testing.assert_allclose(got.similarity, wanted.similarity, atol=1e-6)


def test_what_cannot_be_merged_or_read_is_named(tmp_path):
    part = exact(GALLERY[:2], GALLERY, 3)
    with pytest.raises(InputError, match=r"`first_rows`. Expected one row for each of 1 parts"):
        merge_neighbors([part], [0, 5], 3)
    with pytest.raises(InputError, match=r"`parts`. Expected neighbours of the same queries"):
        merge_neighbors([part, exact(GALLERY[:3], GALLERY, 3)], [0, 5], 3)
    with pytest.raises(InputError, match="`k`"):
        merge_neighbors([part], [0], 0)
    with pytest.raises(InputError, match=r"`shards`. Expected at least one row"):
        search_shards(GALLERY[:2], [GALLERY[:0]], 3)
    with pytest.raises(InputError, match=r"Cannot read the shard .*absent\.npy"):
        search_shards(GALLERY[:2], [tmp_path / "absent.npy"], 3)
    np.save(tmp_path / "objects.npy", np.array([print, None]), allow_pickle=True)
    with pytest.raises(InputError, match=r"Cannot read the shard .*objects\.npy"):
        search_shards(GALLERY[:2], [tmp_path / "objects.npy"], 3)
