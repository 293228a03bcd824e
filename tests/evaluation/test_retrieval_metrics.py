"""The metrics against the plain loops, with ties and queries without a positive, in any blocks; by hand."""

import math
import re

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, by, every_rows, every_search, in_any_blocks
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import retrieval_metrics as metrics
from tfrank.evaluation import retrieval_ranks as ranks
from tfrank.evaluation.metric_names import COUNTS, METRICS, definitions_of
from tfrank.evaluation.nearest import exhaustive, searchers
from tfrank.evaluation.parallel import similarities
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.retrieval_ranks import Ranks

KS = (1, 2, 5, 10, 59)
DISTINCT = ROWS["distinct"]
OWN = np.arange(60)
EVERY_METRIC = {
    **{f"recall_at_{k}": lambda ranking, k=k: float(any(ranking[:k])) for k in KS},
    **{f"precision_at_{k}": lambda ranking, k=k: oracle.precision(ranking, k) for k in KS},
    "ap": oracle.ap,
    "ap_at_r": oracle.ap_at_r,
    "r_precision": oracle.r_precision,
    "reciprocal_rank": oracle.reciprocal_rank,
    "ndcg": oracle.ndcg,
}
CUTOFFS = {
    **{f"ap_at_{k}": lambda ranking, k=k: oracle.ap_at_k(ranking, k) for k in KS},
    **{f"ndcg_at_{k}": lambda ranking, k=k: oracle.ndcg_at_k(ranking, k) for k in KS},
    **{f"reciprocal_rank_at_{k}": lambda ranking, k=k: oracle.reciprocal_rank_at_k(ranking, k) for k in KS},
}
# Positives at ranks 1 and 4; none; at 2, 3 and 7; at 1; none.
BY_HAND = Ranks(np.array([0, 2, 2, 5, 6, 6]), np.array([1, 4, 2, 3, 7, 1], np.int32))


def assert_as_in_the_oracle(got, similarity, *pairs):
    """That a summary holds Recall@K and mAP of the plain loops."""
    precisions = reference.average_precision(similarity, *pairs)
    lone = int(np.sum(np.isnan(precisions)))
    assert (got["queries"], got["queries_without_positive"]) == (len(similarity) - lone, lone)
    assert got["map"] == pytest.approx(np.nanmean(precisions), abs=1e-12)
    for k in KS:
        assert got[f"recall_at_{k}"] == pytest.approx(reference.recall_at_k(similarity, *pairs, k), abs=1e-12)


@every_rows
@in_any_blocks
def test_leave_one_out_is_that_of_the_plain_loops_in_any_blocks(monkeypatch, rows, block_similarities):
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", block_similarities)
    got = leave_one_out(rows, LABELS, KS)
    assert set(got) == {"map", "queries", "queries_without_positive"} | {f"recall_at_{k}" for k in KS}
    assert_as_in_the_oracle(got, rows @ rows.T, LABELS, LABELS, range(60))
    assert got["queries_without_positive"] == 2
    assert 0 < got["recall_at_1"] < got["recall_at_10"]


@every_rows
@in_any_blocks
@pytest.mark.parametrize("own", ["none", "some"])
def test_queries_may_stand_outside_the_gallery(monkeypatch, rows, own, block_similarities):
    """The first 20 rows are queries, the last 50 the gallery; ten rows are both. Query 3 has no positive."""
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", block_similarities)
    numbers = np.arange(20)
    query_labels, gallery_labels = np.where(numbers == 3, 77, LABELS[:20]), LABELS[10:]
    self_index = np.where((numbers >= 10) & (own == "some"), numbers - 10, -1)
    relevance = relevance_by_label(query_labels, gallery_labels, self_index)
    found = ranks.positive_ranks(rows[:20], rows[10:], relevance)
    assert not found.positives[3]
    pairs = (query_labels, gallery_labels, self_index)
    assert_as_in_the_oracle(metrics.summarize(metrics.per_query(found, KS)), rows[:20] @ rows[10:].T, *pairs)


def test_ranks_are_those_of_positives_by_hand():
    similarity = np.array([[0.95, 0.9, 0.8, 0.8, 0.1, 0.1]])
    relevance = relevance_by_label(np.array([1]), np.array([1, 2, 1, 2, 1, 1]), np.array([0]))
    found = ranks.ranks_of_blocks([(0, similarity)], relevance)
    # Before the positive of 0.8 stand 0.9 and the negative tied with it.
    assert found.rank.tolist() == [3, 4, 5] and found.start.tolist() == [0, 3]
    assert metrics.recall_at_k(found, 2) == [0] and metrics.recall_at_k(found, 3) == [1]
    assert metrics.average_precision(found) == pytest.approx([(1 / 3 + 2 / 4 + 3 / 5) / 3])


@every_rows
@pytest.mark.parametrize("block_positives", [metrics.BLOCK_POSITIVES, 40, 1])
def test_every_metric_of_every_query_is_that_of_the_plain_loops(monkeypatch, rows, block_positives):
    monkeypatch.setattr(metrics, "BLOCK_POSITIVES", block_positives)
    found = ranks.positive_ranks(rows, rows, relevance_by_label(LABELS, LABELS, OWN))
    rankings = oracle.relevance(rows @ rows.T, LABELS, LABELS, OWN)
    assert set(metrics.per_query(found, KS)) == set(EVERY_METRIC)
    got = metrics.per_query(found, KS, cutoffs=True)
    assert set(got) == set(EVERY_METRIC | CUTOFFS)
    got |= {"trapezoid": metrics.trapezoid_ap(found), "capped": metrics.capped_precision_at_k(found, 9)}
    landmarks = {"trapezoid": oracle.trapezoid_ap, "capped": lambda r: oracle.capped_precision(r, 9)}
    for name, metric in (EVERY_METRIC | CUTOFFS | landmarks).items():
        wanted = [math.nan if ranking is None else metric(ranking) for ranking in rankings]
        assert got[name].dtype == np.float64
        np.testing.assert_allclose(got[name], wanted, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("metric", "first", "third"),
    [
        (lambda r: metrics.recall_at_k(r, 1), 1, 0),
        (lambda r: metrics.recall_at_k(r, 2), 1, 1),
        (lambda r: metrics.precision_at_k(r, 1), 1, 0),
        (lambda r: metrics.precision_at_k(r, 4), 2 / 4, 2 / 4),
        (metrics.average_precision, (1 / 1 + 2 / 4) / 2, (1 / 2 + 2 / 3 + 3 / 7) / 3),
        (metrics.average_precision_at_r, 1 / 2, (1 / 2 + 2 / 3) / 3),
        (metrics.r_precision, 1 / 2, 2 / 3),
        (metrics.reciprocal_rank, 1, 1 / 2),
        (
            metrics.ndcg,
            (1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3)),
            (1 / math.log2(3) + 1 / 2 + 1 / 3) / (1 + 1 / math.log2(3) + 1 / 2),
        ),
        # From 0: ranks 0 and 3; ranks 1, 2 and 6.
        (
            metrics.trapezoid_ap,
            ((1 + 1) / 2 + (1 / 3 + 2 / 4) / 2) / 2,
            ((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2 + (2 / 6 + 3 / 7) / 2) / 3,
        ),
        (lambda r: metrics.capped_precision_at_k(r, 5), 2 / 4, 2 / 5),
        (lambda r: metrics.capped_precision_at_k(r, 10), 2 / 4, 3 / 7),
    ],
)
def test_metrics_by_hand(metric, first, third):
    """The fourth query finds its only positive first, which is 1 by every metric of so short a list."""
    got = metric(BY_HAND)
    np.testing.assert_allclose(got[:3], [first, math.nan, third], rtol=1e-12)
    assert math.isnan(got[4])


def test_a_perfect_ranking_has_the_best_of_every_metric():
    perfect = metrics.per_query(Ranks(np.array([0, 1, 4]), np.array([1, 1, 2, 3], np.int32)), [1])
    assert all((values == 1).all() for values in perfect.values())


def test_a_summary_is_the_means_over_queries_with_a_positive():
    got = metrics.summarize(metrics.per_query(BY_HAND, [1, 4]))
    assert list(got) == [
        *("recall_at_1", "recall_at_4", "precision_at_1", "precision_at_4"),
        *("map", "map_at_r", "r_precision", "mrr", "ndcg", "queries", "queries_without_positive"),
    ]
    assert (got["queries"], got["queries_without_positive"]) == (3, 2)
    assert got["recall_at_1"] == pytest.approx(2 / 3)
    assert got["precision_at_4"] == pytest.approx((2 / 4 + 2 / 4 + 1 / 4) / 3)
    assert got["map_at_r"] == pytest.approx((1 / 2 + (1 / 2 + 2 / 3) / 3 + 1) / 3)
    assert got["mrr"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert all(type(value) in (float, int) for value in got.values())


def test_every_metric_of_a_summary_is_defined_in_a_sentence():
    columns = {
        **metrics.per_query(BY_HAND, [3]),
        "trapezoid_ap": metrics.trapezoid_ap(BY_HAND),
        "capped_precision_at_3": metrics.capped_precision_at_k(BY_HAND, 3),
    }
    names = metrics.summarize(columns).keys() - set(COUNTS)
    assert len(definitions_of(names)) == len(names)
    assert "hit rate" in METRICS["recall_at_<k>"].definition
    assert "the query itself left out" in METRICS["recall_at_<k>"].definition


@pytest.mark.parametrize(
    ("ks", "gallery_size", "wanted", "note"),
    [
        (None, 100, (1, 10, 100), ""),
        (None, 99, (1, 10), "Left out: K=100. A query is ranked against 99 images."),
        (None, 10, (1, 10), "Left out: K=100. A query is ranked against 10 images."),
        (None, 1, (1,), "Left out: K=10, K=100. A query is ranked against 1 image."),
        (None, 0, (1,), "Left out: K=10, K=100. A query is ranked against 0 images."),
        ((5, 1, 5, 59), 59, (1, 5, 59), ""),
        ([np.int64(2)], 59, (2,), ""),
        # That there is nothing to find is said by what looks for it.
        ([1], 0, (1,), ""),
    ],
)
def test_ks_that_are_possible_are_reported(ks, gallery_size, wanted, note):
    assert metrics.usable_ks(ks, gallery_size) == (wanted, note)


@pytest.mark.parametrize(
    ("ks", "message"),
    [
        ((1, 60), "K=60 is too large: a query is ranked against 59 images. Choose Ks up to 59."),
        ((1, 0), "`ks`. Expected an integer of at least 1. Received: ks=0"),
        ((1, 1.5), "`ks`. Expected an integer of at least 1. Received: ks=1.5"),
        ((True,), "`ks`. Expected an integer of at least 1. Received: ks=True"),
        ("10", "`ks`. Expected a list of numbers. Received: ks='10'"),
        ((), "`ks`. Expected a list of numbers"),
    ],
)
def test_ks_that_are_not_are_refused(ks, message):
    with pytest.raises(InputError, match=re.escape(message)):
        metrics.usable_ks(ks, 59)


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
    found = exhaustive.exact(rows, rows, min(k + 1, 60), own)
    got = metrics.summarize(metrics.per_query_of_neighbors(*found, LABELS, LABELS, own, [k]))
    similarity = similarities(rows, rows)
    wanted = reference.recall_at_k(similarity, LABELS, LABELS, own, k)
    hits = [
        sum(ranking[:k]) / k for ranking in reference.relevance(similarity, LABELS, LABELS, own) if ranking
    ]
    assert got == {
        f"recall_at_{k}": pytest.approx(wanted),
        f"precision_at_{k}": pytest.approx(np.mean(hits)),
        "queries": 58,
        "queries_without_positive": 2,
    }


def test_hits_among_neighbors_know_a_query_without_positive():
    """Labels that the gallery lacks, below, between and above its own; a query alone with its label; -1."""
    gallery_labels = np.array([5, 5, 7])
    query_labels = np.array([4, 6, 8, 7, 7, 5, 5])
    own = np.array([-1, -1, -1, 2, -1, -1, 0])
    index = np.array([[0, 1], [0, 1], [0, 1], [0, 1], [2, -1], [2, -1], [1, -1]])
    similarity = np.where(index < 0, -np.inf, [0.9, 0.8])
    got = metrics.per_query_of_neighbors(index, similarity, query_labels, gallery_labels, own, [1, 2])
    nan = np.nan
    np.testing.assert_array_equal(got["recall_at_2"], [nan, nan, nan, nan, 1, 0, 1])
    np.testing.assert_array_equal(got["precision_at_2"], [nan, nan, nan, nan, 0.5, 0, 0.5])


def test_no_neighbor_is_no_hit_of_the_last_row():
    found = np.array([[1, -1]]), np.array([[0.9, -np.inf]])
    got = metrics.per_query_of_neighbors(*found, np.array([3]), np.array([0, 1, 3]), np.array([-1]), [2])
    assert got["recall_at_2"] == [0]


def test_a_hit_that_may_be_tied_with_what_is_not_listed_is_none():
    """Of five equal rows the list has three: who knows what stands before the positive."""
    found = np.array([[0, 1, 2]]), np.ones([1, 3])
    labels = np.array([7, 7, 8, 8, 8])
    got = metrics.per_query_of_neighbors(*found, np.array([7]), labels, np.array([-1]), [1, 2])
    assert got["recall_at_2"] == [0] and got["precision_at_2"] == [0]


@every_rows
def test_scann_gives_the_recalls_of_exact_search_and_its_own(rows):
    exact = leave_one_out(rows, LABELS, KS)
    approximate = leave_one_out(rows, LABELS, KS, search="scann")
    assert approximate.pop("scann_recall") == 1
    exact.pop("map")
    assert approximate == pytest.approx(exact)


def test_own_recall_of_a_search_that_misses_is_reported(monkeypatch):
    def poor(queries, gallery, k, self_index):
        found = exhaustive.exact(queries, gallery, k, self_index)
        return found._replace(index=np.where(np.arange(k) < k // 2, found.index, -1))

    monkeypatch.setattr(searchers, "find", by(poor))
    assert leave_one_out(DISTINCT, LABELS, [10], search="scann")["scann_recall"] == 0.5


@every_search
@pytest.mark.parametrize("images", [1, 5])
def test_nothing_to_retrieve_is_said(search, images):
    rows = DISTINCT[:images]
    with pytest.raises(
        InputError, match="No image has another of its class, so there is nothing to retrieve"
    ):
        leave_one_out(rows, np.arange(images), [1], search=search)
