"""Neighbours: exact search against brute force in NumPy, ScaNN against exact search."""

import sys
from unittest import mock

import numpy as np
import pytest

from tests.evaluation import ROWS, every_rows, every_search, in_any_blocks
from tfrank.checks import InputError
from tfrank.evaluation import neighbors

KS = (1, 5, 10, 59, 60, 75)
DISTINCT, REPEATED = ROWS["distinct"], ROWS["repeated"]


def brute_force(queries, gallery, k, self_index=None):
    """As `exact`: each query's whole gallery sorted, ties in the order of the gallery."""
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


@every_rows
@in_any_blocks
def test_exact_search_is_brute_force_in_any_blocks(monkeypatch, rows, block_similarities):
    monkeypatch.setattr(neighbors, "BLOCK_SIMILARITIES", block_similarities)
    own = np.arange(len(rows))
    for k in KS:
        assert_neighbors(neighbors.exact(rows, rows, k, own), brute_force(rows, rows, k, own))
        assert_neighbors(neighbors.exact(rows[:9], rows, k), brute_force(rows[:9], rows, k))


@every_search
def test_only_queries_that_stand_in_the_gallery_are_left_out_of_it(search):
    own = np.where(np.arange(60) % 3 == 0, np.arange(60), -1)
    got = neighbors.search(search)(DISTINCT, DISTINCT, 4, own)
    assert_neighbors(got, brute_force(DISTINCT, DISTINCT, 4, own))


@every_search
def test_duplicates_of_the_query_stay_and_the_query_itself_goes(search):
    own = np.arange(60)
    got = neighbors.search(search)(REPEATED, REPEATED, 3, own)
    wanted = [[j for j in range(q % 15, 60, 15) if j != q] for q in range(60)]
    np.testing.assert_array_equal(got.index, wanted)
    np.testing.assert_array_equal(got.similarity, 1)


@every_search
@pytest.mark.parametrize("k", [3, 4, 6])
def test_places_that_the_gallery_cannot_fill_hold_no_neighbor(search, k):
    gallery = DISTINCT[:4]
    got = neighbors.search(search)(gallery, gallery, k, np.arange(4))
    assert got.index.shape == got.similarity.shape == (4, k)
    assert np.all(np.sort(got.index[:, :3], axis=1) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    assert np.all(got.index[:, 3:] == -1) and np.all(got.similarity[:, 3:] == -np.inf)
    assert_neighbors(got, brute_force(gallery, gallery, k, np.arange(4)))


@every_rows
def test_scann_finds_what_exact_search_finds(rows):
    own = np.arange(len(rows))
    for k in KS:
        assert_neighbors(neighbors.scann(rows, rows, k, own), neighbors.exact(rows, rows, k, own))
        assert_neighbors(neighbors.scann(rows[:9], rows, k), neighbors.exact(rows[:9], rows, k))


def test_what_scann_pads_with_is_no_neighbor(monkeypatch):
    """An approximate search that finds too few repeats row 0, at distance NaN."""
    found = np.array([[1, 3, 0], [2, 0, 0], [0, 0, 0]], np.uint32)
    similarity = np.array([[1, 0.9, 0.8], [0.7, np.nan, np.nan], [np.nan] * 3], np.float32)
    scann = mock.MagicMock()
    searcher = scann.scann_ops_pybind.builder.return_value.score_brute_force.return_value.build.return_value
    searcher.search_batched_parallel.return_value = found, similarity
    monkeypatch.setitem(sys.modules, "scann", scann)
    got = neighbors.scann(DISTINCT[:3], DISTINCT, 2, np.array([1, -1, 0]))
    np.testing.assert_array_equal(got.index, [[3, 0], [2, -1], [-1, -1]])
    np.testing.assert_array_equal(got.similarity, np.float32([[0.9, 0.8], [0.7, -np.inf], [-np.inf] * 2]))


def test_without_scann_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "scann", None)
    message = r"ScaNN cannot be imported .*pip install 'scann>=1\.4\.2,<1\.5'.*--neighbors=exact"
    with pytest.raises(InputError, match=message):
        neighbors.search("scann")(DISTINCT, DISTINCT, 3)
    assert neighbors.search("exact")(DISTINCT, DISTINCT, 3).index.shape == (60, 3)


def test_an_unknown_search_is_refused():
    with pytest.raises(InputError, match=r'argument `neighbors`\. .*Did you mean "exact"\?'):
        neighbors.search("exakt")
