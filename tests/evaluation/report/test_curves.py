"""The data behind the charts against plain loops: queries without a positive, ties, collapsed models."""

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, every_rows
from tests.reference import curves as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import retrieval_ranks as ranks
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.report import curves
from tfrank.evaluation.retrieval_metrics import first_rank
from tfrank.evaluation.retrieval_ranks import Ranks

OWN = np.arange(60)
# Queries 0 to 19, of which 10 to 19 are in the gallery too; query 3 has no positive.
QUERY_LABELS = np.where(OWN[:20] == 3, 77, LABELS[:20])
PARTLY_OWN = np.where(OWN[:20] >= 10, OWN[:20] - 10, -1)


def split(rows, own):
    """Queries and gallery with their labels, and the queries' own rows."""
    if own == "all":
        return rows, rows, LABELS, LABELS, OWN
    return rows[:20], rows[10:], QUERY_LABELS, LABELS[10:], PARTLY_OWN


def ranks_of(queries, gallery, query_labels, gallery_labels, own):
    return ranks.positive_ranks(queries, gallery, relevance_by_label(query_labels, gallery_labels, own))


every_split = pytest.mark.parametrize("own", ["all", "some"])


@every_rows
@every_split
@pytest.mark.parametrize("levels, positives", [(2, 2**18), (21, 7)])
def test_precision_at_levels_of_recall_is_that_of_the_plain_loops(monkeypatch, rows, own, levels, positives):
    queries, gallery, *pairs = split(rows, own)
    monkeypatch.setattr(curves, "BLOCK_POSITIVES", positives)
    found = ranks_of(queries, gallery, *pairs)
    precision = curves.precision_sums(found, levels) / np.count_nonzero(found.positives)
    wanted = oracle.precision_recall(queries @ gallery.T, *pairs, levels)
    np.testing.assert_allclose(precision, wanted, rtol=1e-12)


def test_precision_at_levels_of_recall_by_hand():
    """Ranks 2, 3 and 10 of three: precisions 1/2, 2/3, 3/10; up to recall 2/3 the highest is 2/3."""
    precision = curves.precision_sums(Ranks(np.array([0, 3, 3]), np.array([2, 3, 10])), 4)
    assert precision.tolist() == [2 / 3, 2 / 3, 2 / 3, 0.3]


@every_rows
@every_split
def test_recall_curve_is_that_of_the_plain_loops(rows, own):
    queries, gallery, *pairs = split(rows, own)
    ks, recall = curves.recall_curve(first_rank(ranks_of(queries, gallery, *pairs)), 12)
    assert ks.tolist() == list(range(1, 13))
    similarity = queries @ gallery.T
    np.testing.assert_allclose(recall, [reference.recall_at_k(similarity, *pairs, k) for k in ks], rtol=1e-12)


def test_a_curve_of_no_query_is_refused():
    with pytest.raises(InputError, match="nothing to draw"):
        curves.recall_curve(np.full(2, np.nan), 3)


@every_rows
@every_split
@pytest.mark.parametrize("bins, block", [(100, 2**22), (7, 150)])
def test_histogram_of_similarities_is_that_of_the_plain_loops(monkeypatch, rows, own, bins, block):
    monkeypatch.setattr(curves, "BLOCK_SIMILARITIES", block)
    queries, gallery, *pairs = split(rows, own)
    found = curves.similarity_histogram(queries, gallery, *pairs, bins=bins)
    wanted = oracle.similarity_histogram(queries @ gallery.T, *pairs, bins)
    np.testing.assert_allclose(found.edges, [2 * n / bins - 1 for n in range(bins + 1)], atol=1e-12)
    np.testing.assert_allclose(found[1:], wanted, rtol=1e-12)


def test_histogram_is_of_a_seeded_sample_of_the_queries():
    """Each query has one positive, of a similarity of its own."""
    angles = np.linspace(0, np.pi, 50)
    queries = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    gallery = np.array([[1, 0], [-1, 0]], np.float32)
    pairs = np.zeros(50, int), np.array([0, 1]), np.full(50, -1)

    def drawn(seed):
        found = curves.similarity_histogram(queries, gallery, *pairs, sample=10, bins=1000, seed=seed)
        assert round(found.positive.sum() * 2 / 1000 * 10) == 10 and (found.positive > 0).sum() <= 10
        return found.positive.tolist()

    assert drawn(0) == drawn(0) != drawn(1)


def test_histogram_without_positive_pairs_has_no_density_of_them():
    found = curves.similarity_histogram(np.eye(2), np.eye(2), np.arange(2), np.arange(2), np.arange(2))
    assert not found.positive.any() and found.negative.sum() * 2 / 100 == pytest.approx(1)


def clusters(classes, size, dim=16):
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=[classes, dim]), size, axis=0) + 0.1 * rng.normal(
        size=[classes * size, dim]
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_map_keeps_neighbours_together_and_is_the_same_each_time():
    rows, labels = clusters(5, 30), np.repeat(np.arange(5), 30)
    drawn, places = curves.map_2d(rows, at_most=100)
    again, places_again = curves.map_2d(rows, at_most=100)
    np.testing.assert_array_equal(drawn, again)
    np.testing.assert_array_equal(places, places_again)
    assert places.shape == (100, 2) and (np.diff(drawn) > 0).all()
    distance = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(100, np.inf))
    assert (labels[drawn][distance.argmin(axis=1)] == labels[drawn]).all()
    assert curves.map_2d(rows, at_most=100, seed=1)[0].tolist() != drawn.tolist()


def test_map_of_few_points_is_their_first_principal_components():
    rows = clusters(9, 1, dim=2)
    _, places = curves.map_2d(rows)
    apart = [np.linalg.norm(x[:, None] - x, axis=-1) for x in (rows, places)]
    np.testing.assert_allclose(*apart, atol=1e-5)
    assert places[:, 0].var() > places[:, 1].var()


@pytest.mark.parametrize("count", [1, 2, 9, 10, 40])
@pytest.mark.parametrize("dim", [1, 3])
def test_map_is_finite_for_any_number_of_points_and_for_a_collapsed_model(count, dim):
    rng = np.random.default_rng(0)
    for rows in (np.ones([count, dim], np.float32), rng.normal(size=[count, dim]).astype(np.float32)):
        drawn, places = curves.map_2d(rows)
        assert drawn.tolist() == list(range(count))
        assert places.shape == (count, 2) and np.isfinite(places).all()


def precisions(ties):
    """AP of 60 queries, some without a positive."""
    ap = np.random.default_rng(3).random(60)
    ap[[5, 40]] = np.nan
    return np.round(ap, 1) if ties else ap


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 4, 8, 59])
def test_worst_and_best_queries_are_those_of_the_plain_loops(ties, count):
    ap = precisions(ties)
    chosen = curves.choose_queries(ap, LABELS, count=count)
    assert chosen["worst"].tolist() == oracle.choose_queries(ap, LABELS, count, highest=False)
    assert chosen["best"].tolist() == oracle.choose_queries(ap, LABELS, count, highest=True)


@pytest.mark.parametrize("count", [1, 8, 59])
def test_worst_queries_are_those_of_most_wrong_on_top_and_then_of_the_surest_mistakes(count):
    rng, ap = np.random.default_rng(6), precisions(True)
    wrong = np.where(np.isnan(ap), np.nan, rng.integers(0, 3, 60))
    similarity = np.where(wrong > 0, np.round(rng.random(60), 1), np.nan)
    chosen = curves.choose_queries(ap, LABELS, wrong=wrong, similarity=similarity, count=count)
    wanted = oracle.choose_queries(ap, LABELS, count, highest=False, wrong=wrong, similarity=similarity)
    assert chosen["worst"].tolist() == wanted
    # The best are as they were.
    assert chosen["best"].tolist() == oracle.choose_queries(ap, LABELS, count, highest=True)


def test_at_most_two_queries_of_a_class_are_among_the_worst_and_the_best():
    chosen = curves.choose_queries(np.linspace(0, 1, 9), np.array([4] * 6 + [5] * 3), count=8)
    assert chosen["worst"].tolist() == [0, 1, 6, 7] and chosen["best"].tolist() == [8, 7, 5, 4]


def test_wrong_images_on_top_are_those_before_the_first_right_one():
    found = curves.wrong_on_top(np.array([4, np.nan, 1, 900]), 8)
    np.testing.assert_array_equal(found, [3, np.nan, 0, 8])


def test_random_queries_are_seeded_and_never_without_a_positive():
    ap = precisions(False)
    chosen = [curves.choose_queries(ap, LABELS, count=8, seed=seed)["random"] for seed in range(20)]
    assert all(len(set(rows.tolist())) == 8 and (np.diff(rows) > 0).all() for rows in chosen)
    assert not {5, 40} & set(np.concatenate(chosen).tolist())
    assert len({tuple(rows.tolist()) for rows in chosen}) == 20
    assert curves.choose_queries(ap, LABELS)["random"].tolist() == chosen[0].tolist()


def test_queries_without_labels_are_chosen_by_ap_alone():
    chosen = curves.choose_queries(np.array([0.3, 0.1, np.nan, 0.2]), count=2)
    assert chosen["worst"].tolist() == [1, 3] and chosen["best"].tolist() == [0, 3]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_worst_classes_are_those_of_the_plain_loops(count):
    rng = np.random.default_rng(4)
    ap = precisions(ties=True)
    ap[LABELS >= 2**40] = np.nan
    recall = np.where(np.isnan(ap), np.nan, rng.integers(0, 2, 60))
    nearest = np.where(recall == 1, LABELS, rng.choice(np.unique(LABELS), 60))
    found = curves.worst_classes(LABELS, recall, ap, count, nearest=nearest, names="class {}".format)
    wanted = oracle.worst_classes(LABELS.tolist(), recall, ap, nearest.tolist(), count)
    assert len(found) == len(wanted) == min(count, 4)
    for score, (label, queries, r, precision, most, times) in zip(found, wanted):
        assert score.name == f"class {label}" and score.queries == queries
        assert (score.recall, score.average_precision) == pytest.approx((r, precision))
        assert score.confused_with == ("" if most is None else f"class {most}") and score.confused == times


def test_of_equally_bad_classes_the_lower_map_and_then_the_lower_label_comes_first():
    labels, ap = np.array([4, 3, 2, 1]), np.array([0.2, 0.1, 0.2, 0.5])
    found = curves.worst_classes(labels, np.array([0, 0, 0, 1]), ap)
    assert [score.name for score in found] == ["3", "2", "4", "1"]
    assert {(score.confused_with, score.confused) for score in found} == {("", 0)}
