"""Recall@K and mAP against the plain loops, with lone queries, ties, and in any blocks."""

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, every_rows, every_search, in_any_blocks
from tfrank.checks import InputError
from tfrank.evaluation import metrics, neighbors, ranks
from tfrank.evaluation.protocols import leave_one_out

KS = (1, 2, 5, 10, 59)
DISTINCT = ROWS["distinct"]


def assert_as_in_the_oracle(got, similarity, *pairs):
    """That a summary holds Recall@K and mAP of the plain loops."""
    precisions = reference.average_precision(similarity, *pairs)
    lone = int(np.sum(np.isnan(precisions)))
    assert (got["queries"], got["lone_queries"]) == (len(similarity) - lone, lone)
    assert got["map"] == pytest.approx(np.nanmean(precisions), abs=1e-12)
    for k in KS:
        assert got[f"recall_at_{k}"] == pytest.approx(reference.recall_at_k(similarity, *pairs, k), abs=1e-12)


@every_rows
@in_any_blocks
def test_leave_one_out_is_that_of_the_plain_loops_in_any_blocks(monkeypatch, rows, block_similarities):
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", block_similarities)
    got = leave_one_out(rows, LABELS, KS)
    assert set(got) == {"map", "queries", "lone_queries"} | {f"recall_at_{k}" for k in KS}
    assert_as_in_the_oracle(got, rows @ rows.T, LABELS, LABELS, range(60))
    assert got["lone_queries"] == 2
    assert 0 < got["recall_at_1"] < got["recall_at_10"]


@every_rows
@in_any_blocks
@pytest.mark.parametrize("own", ["none", "some"])
def test_queries_may_stand_outside_the_gallery(monkeypatch, rows, own, block_similarities):
    """The first 20 rows are queries, the last 50 the gallery; ten rows are both. Query 3 is lone."""
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", block_similarities)
    numbers = np.arange(20)
    query_labels, gallery_labels = np.where(numbers == 3, 77, LABELS[:20]), LABELS[10:]
    self_index = np.where((numbers >= 10) & (own == "some"), numbers - 10, -1)
    truth = ranks.by_label(query_labels, gallery_labels, self_index)
    found = ranks.positive_ranks(rows[:20], rows[10:], truth)
    assert not found.positives[3]
    pairs = (query_labels, gallery_labels, self_index)
    assert_as_in_the_oracle(metrics.summarize(found, KS), rows[:20] @ rows[10:].T, *pairs)


def test_ranks_are_those_of_positives_by_hand():
    similarity = np.array([[0.95, 0.9, 0.8, 0.8, 0.1, 0.1]])
    truth = ranks.by_label(np.array([1]), np.array([1, 2, 1, 2, 1, 1]), np.array([0]))
    found = ranks.ranks_of_blocks([(0, similarity)], truth)
    # Before the positive of 0.8 stand 0.9 and the negative tied with it.
    assert found.rank.tolist() == [3, 4, 5] and found.start.tolist() == [0, 3]
    assert metrics.recall_at_k(found, 2) == 0 and metrics.recall_at_k(found, 3) == 1
    assert metrics.mean_average_precision(found) == pytest.approx((1 / 3 + 2 / 4 + 3 / 5) / 3)


def test_all_alike_gives_the_worst_ranking():
    """A collapsed model must not look good."""
    got = leave_one_out(np.ones([60, 1], np.float32), LABELS, [1])
    assert got["recall_at_1"] == 0


def test_ks_above_the_number_of_other_images_are_left_out():
    rows, labels = DISTINCT[:4], np.array([1, 1, 2, 2])
    assert {key for key in leave_one_out(rows, labels, [1, 3, 4, 10]) if "at" in key} == {
        "recall_at_1",
        "recall_at_3",
    }


@pytest.mark.parametrize("k", KS)
def test_recalls_from_neighbors_are_those_of_the_plain_loops(k):
    rows = DISTINCT
    own = np.arange(60)
    got = metrics.neighbor_recalls(neighbors.exact(rows, rows, k, own).index, LABELS, LABELS, own, [k])
    wanted = reference.recall_at_k(rows @ rows.T, LABELS, LABELS, own, k)
    assert got == {f"recall_at_{k}": pytest.approx(wanted), "queries": 58, "lone_queries": 2}


def test_recalls_from_neighbors_know_a_query_without_positive():
    """Labels that the gallery lacks, below, between and above its own; a query alone with its label; -1."""
    gallery_labels = np.array([5, 5, 7])
    query_labels = np.array([4, 6, 8, 7, 7, 5, 5])
    own = np.array([-1, -1, -1, 2, -1, -1, 0])
    index = np.array([[0, 1], [0, 1], [0, 1], [0, 1], [2, -1], [2, -1], [1, -1]])
    got = metrics.neighbor_recalls(index, query_labels, gallery_labels, own, [1, 2])
    assert got == {
        "recall_at_1": pytest.approx(2 / 3),
        "recall_at_2": pytest.approx(2 / 3),
        "queries": 3,
        "lone_queries": 4,
    }


def test_no_neighbor_is_no_hit_of_the_last_row():
    got = metrics.neighbor_recalls(
        np.array([[1, -1]]), np.array([3]), np.array([0, 1, 3]), np.array([-1]), [2]
    )
    assert got["recall_at_2"] == 0


def test_scann_gives_the_recalls_of_exact_search_and_its_own():
    exact = leave_one_out(DISTINCT, LABELS, KS)
    approximate = leave_one_out(DISTINCT, LABELS, KS, neighbors="scann")
    assert approximate.pop("scann_recall") == 1
    exact.pop("map")
    assert approximate == pytest.approx(exact)


def test_own_recall_of_a_search_that_misses_is_reported(monkeypatch):
    def poor(queries, gallery, k, self_index):
        found = neighbors.exact(queries, gallery, k, self_index)
        return found._replace(index=np.where(np.arange(k) < k // 2, found.index, -1))

    monkeypatch.setitem(neighbors.SEARCHES, "scann", poor)
    assert leave_one_out(DISTINCT, LABELS, [10], neighbors="scann")["scann_recall"] == 0.5


@every_search
@pytest.mark.parametrize("images", [1, 5])
def test_nothing_to_retrieve_is_said(search, images):
    rows = DISTINCT[:images]
    with pytest.raises(
        InputError, match="No image has another of its class, so there is nothing to retrieve"
    ):
        leave_one_out(rows, np.arange(images), [1], neighbors=search)
