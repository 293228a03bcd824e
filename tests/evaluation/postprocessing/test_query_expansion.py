"""Query expansion and database augmentation against plain loops, by hand, and at the edges."""

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, every_rows, every_search
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import exhaustive, searchers
from tfrank.evaluation.postprocessing import query_expansion as expansion
from tfrank.evaluation.postprocessing.query_expansion import augment_database, expand_queries
from tfrank.evaluation.ranking_results import leave_one_out

DISTINCT = ROWS["distinct"]
OWN = np.arange(60)


@every_rows
@pytest.mark.parametrize("k, alpha", [(1, 2.0), (10, 2.0), (10, 0), (59, 0.5), (100, 3.0)])
@pytest.mark.parametrize("block_rows", [expansion.BLOCK_ROWS, 7])
def test_expansion_is_that_of_the_plain_loops_in_any_blocks(monkeypatch, rows, k, alpha, block_rows):
    monkeypatch.setattr(expansion, "BLOCK_ROWS", block_rows)
    for queries, gallery, own in [(rows[:20], rows[20:], None), (rows, rows, OWN)]:
        got = expand_queries(queries, gallery, k=k, alpha=alpha, self_index=own)
        none = np.full(len(queries), -1)
        wanted = reference.expanded(queries, gallery, k, alpha, none if own is None else own)
        np.testing.assert_allclose(got, wanted, atol=1e-6)
        assert got.dtype == np.float32
    np.testing.assert_array_equal(augment_database(rows, k=k, alpha=alpha), got)


def test_expansion_by_hand():
    """s = 0.8 and 0 and -1; with alpha = 2 the weights are 0.64, 0 and 0, with 0 they are 1."""
    query, gallery = np.float32([[1, 0]]), np.float32([[-1, 0], [0.8, 0.6], [0, 1]])
    weighted = np.array([1 + 0.64 * 0.8, 0.64 * 0.6])
    got = expand_queries(query, gallery, k=3)
    np.testing.assert_allclose(got, [weighted / np.linalg.norm(weighted)], atol=1e-6)
    average = np.array([1 + 0.8 + 0 - 1, 0.6 + 1])
    got = expand_queries(query, gallery, k=3, alpha=0)
    np.testing.assert_allclose(got, [average / np.linalg.norm(average)], atol=1e-6)


@pytest.mark.parametrize("k", [4, 5, 10**12])
def test_of_a_smaller_gallery_all_rows_count(k):
    got = expand_queries(DISTINCT[:3], DISTINCT[3:7], k=k)
    np.testing.assert_array_equal(got, expand_queries(DISTINCT[:3], DISTINCT[3:7], k=4))
    # Alone in the gallery, there is nothing to add.
    np.testing.assert_allclose(augment_database(DISTINCT[:1], k=k), DISTINCT[:1], atol=1e-6)


@pytest.mark.parametrize("alpha", [0, 2.0])
def test_zeros_stay_zeros_and_add_nothing(alpha):
    rows = np.concatenate([DISTINCT[:5], np.zeros([2, 12], np.float32)])
    got = augment_database(rows, k=6, alpha=alpha)
    assert not got[5:].any()
    np.testing.assert_allclose(got[:5], augment_database(rows[:5], k=6, alpha=alpha), atol=1e-6)


@every_search
def test_any_search_will_do_and_is_asked_for_k(search):
    asked = []

    def counting(queries, gallery, k, self_index):
        asked.append(k)
        return searchers.find(search, queries, gallery, k, self_index)

    got = expand_queries(DISTINCT, DISTINCT, k=4, self_index=OWN, search=counting)
    np.testing.assert_allclose(got, reference.expanded(DISTINCT, DISTINCT, 4, 2, OWN), atol=1e-6)
    augmented = augment_database(DISTINCT, k=4, search=counting)
    np.testing.assert_array_equal(augmented, got)
    assert asked == [4, 4]


def test_a_memory_map_in_half_precision_is_searched_and_expanded_in_float32(tmp_path):
    def search(queries, gallery, k, self_index):
        assert queries.dtype == gallery.dtype == np.float32
        return exhaustive.exact(queries, gallery, k, self_index)

    np.save(tmp_path / "rows.npy", ROWS["tied"].astype(np.float16))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    np.testing.assert_array_equal(augment_database(mapped, search=search), augment_database(ROWS["tied"]))


def test_augmentation_makes_the_ranking_of_clustered_rows_better():
    before = leave_one_out(DISTINCT, LABELS, [1])["map"]
    assert leave_one_out(augment_database(DISTINCT, k=5), LABELS, [1])["map"] > before + 0.02


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"k": 0}, "argument `k`. Expected an integer of at least 1"),
        ({"alpha": -1}, "argument `alpha`. Expected a finite number of at least 0"),
        ({"gallery": DISTINCT[:, :11]}, r"argument `gallery`. .*\[rows, 12\].*float32 of shape \(60, 11\)"),
        ({"gallery": DISTINCT[:0]}, "argument `gallery`. .*at least one row"),
        ({"queries": DISTINCT[0]}, r"argument `queries`. .*\[rows, dim\]"),
        (
            {"self_index": np.arange(59)},
            "argument `self_index`. Expected a gallery row, or -1, of each of 60",
        ),
        ({"self_index": OWN * 1.0}, "argument `self_index`. Expected a gallery row"),
        ({"self_index": OWN + 1}, "Expected rows below 60, .*from 0 to 60"),
        ({"self_index": OWN - 2}, "Expected rows below 60.*from -2 to 57"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    arguments = {"queries": DISTINCT, "gallery": DISTINCT, **arguments}
    with pytest.raises(InputError, match=message):
        expand_queries(arguments.pop("queries"), arguments.pop("gallery"), **arguments)
