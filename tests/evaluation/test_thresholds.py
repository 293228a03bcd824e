"""From which similarity on results are right, and what holds for larger indexes: against plain loops."""

import itertools
import math

import numpy as np
import pytest

from tests.evaluation.populations import drawn_classes, wrong_from
from tfrank.common.checks import InputError
from tfrank.evaluation import thresholds as module
from tfrank.evaluation.far_thresholds import far_in_words, far_thresholds
from tfrank.evaluation.thresholds import curve, from_json, in_words, threshold, thresholds
from tfrank.evaluation.votes import acceptance, held_out


def clustered(seed, images=40, classes=5):
    """Rows of classes that overlap, and their labels."""
    rng = np.random.default_rng(seed)
    labels, centres = rng.integers(0, classes, images), np.random.default_rng(9).normal(size=(classes, 4))
    rows = rng.normal(size=(images, 4)) + 2 * centres[labels]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def shares(rows, labels, queries, step):
    """Of each query with results from `step` on: the share that is wrong, by a loop."""
    found = {}
    for query in queries:
        others = [other for other in range(len(rows)) if other != query]
        results = [other for other in others if float(rows[query] @ rows[other]) >= step - 1e-6]
        if results:
            wrong = [other for other in results if labels[other] != labels[query]]
            found[query] = {other: 1 / len(results) for other in wrong}
    return found


def test_nothing_is_promised_where_all_queries_that_were_drawn_are_of_one_class():
    rows, labels = clustered(0, images=4000, classes=1)
    labels[-1] = 1
    (found,) = thresholds(rows, labels, precisions=[0.95])
    assert found.high == math.inf and found.classes == 1
    assert acceptance(held_out(rows, labels)).high == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_wrong_results_and_its_interval_are_those_of_a_loop(seed):
    rows, labels = clustered(seed, classes=6)
    queries = labels < 5 if seed else np.ones(len(rows), bool)
    found = curve(rows, labels, queries=queries)
    assert found.images == 40 and found.classes == len(set(labels[queries])) and len(found.similarity) > 20
    for place in range(0, len(found.similarity), 7):
        wrong = shares(rows, labels, np.flatnonzero(queries), found.similarity[place])
        error = sum(sum(of_query.values()) for of_query in wrong.values())
        mean = error / len(wrong)
        influence = 0
        for name in set(labels):
            own = [sum(wrong[query].values()) - mean for query in wrong if labels[query] == name]
            results = [
                s for of_query in wrong.values() for other, s in of_query.items() if labels[other] == name
            ]
            influence += (sum(own) + sum(results) - error * np.mean(labels == name)) ** 2
        spread = math.sqrt(found.classes / (found.classes - 1) * influence) / len(wrong)
        quantile = {5: 2.7764, 6: 2.5706}[found.classes]
        assert found.wrong[place] == pytest.approx(mean, abs=1e-6)
        assert found.low[place] == pytest.approx(max(0, mean - quantile * spread), abs=1e-4)
        high = (error + module.UNSEEN) / (len(wrong) + module.UNSEEN) + quantile * spread
        assert found.high[place] == pytest.approx(min(1, high), abs=1e-4)


def test_the_order_of_rows_changes_nothing_where_many_are_as_similar():
    """Of the same four rows, the old threshold was .5 or 1.01, by their order."""
    rows = np.array([[1, 0], [0.5, 0.75**0.5], [0.5, -(0.75**0.5)], [1, 0]], np.float32)
    # And of more rows as similar as the last result that is looked at than are looked at.
    many = np.concatenate([np.repeat(rows, 40, axis=0), clustered(0)[0] @ np.eye(4, 2, dtype=np.float32)])
    many[160:] /= np.linalg.norm(many[160:], axis=1, keepdims=True)
    for vectors, labels in ((rows, np.array([0, 0, 1, 1])), (many, np.arange(200) % 7)):
        found = {
            tuple((one.similarity, one.low, one.high) for one in thresholds(vectors[order], labels[order]))
            for order in map(np.random.default_rng(0).permutation, [len(labels)] * 8)
        }
        rounded = {tuple(np.round(np.array(one), 5).ravel().tolist()) for one in found}
        assert len(rounded) == 1


def test_an_index_of_more_images_needs_a_higher_threshold_until_nothing_can_be_promised():
    rows, labels = drawn_classes(np.random.default_rng(0), 60, noise=0.12, images=8)
    found = curve(rows, labels)
    by_size = [threshold(found, 0.95, images) for images in (10, 480, 960, 10**6)]
    highs = [one.high for one in by_size]
    assert highs[0] == highs[1] and highs == sorted(highs) and highs[1] < highs[2] < math.inf == highs[-1]
    assert [one.images for one in by_size] == [10, 480, 960, 10**6]
    assert by_size[1].recall > by_size[2].recall > by_size[-1].recall == 0
    assert all(one.low <= one.similarity <= one.high for one in by_size)


def test_nothing_is_promised_from_fewer_than_five_classes_and_the_sentence_says_so():
    rows, labels = drawn_classes(np.random.default_rng(0), 40, noise=0.02, images=40)
    for classes, promised in ((4, False), (5, True), (40, True)):
        some = labels < classes
        (found,) = thresholds(rows[some], labels[some], precisions=[0.9])
        assert math.isfinite(found.high) == promised and found.classes == classes
        assert ("4 classes are too few to promise anything; 5 are needed" in in_words(found)) != promised
        assert f"index of {'up to ' * promised}{some.sum():,} images" in in_words(found)


def test_where_all_results_are_wrong_there_is_no_threshold():
    rows, _ = drawn_classes(np.random.default_rng(0), 40, noise=0.02)
    (found,) = thresholds(rows, np.tile(np.arange(60), 4), precisions=[0.9])
    assert math.isinf(found.similarity) and found.recall == 0
    assert in_words(found).endswith("from no similarity on 90 % of them are of the query's class.")


def test_images_without_a_class_are_wrong_results_and_no_queries():
    rows, labels = drawn_classes(np.random.default_rng(0), 30, noise=0.1)
    found = curve(rows, np.where(labels < 20, labels, -1))
    wanted = curve(rows, np.where(labels < 20, labels, 20 + np.arange(len(labels))), queries=labels < 20)
    assert found.classes == 20 and found.images == 180
    for got, value in zip(found, wanted):
        np.testing.assert_allclose(got, value)


def test_a_curve_is_read_back_from_json():
    found = curve(*clustered(0))
    for got, wanted in zip(from_json(module.as_json(found)), found):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [-1, -1, -1], [-1, 0, 0]])
def test_one_class_or_no_pair_is_refused(labels):
    with pytest.raises(InputError, match="at least two classes, and one of them with two images"):
        thresholds(np.eye(3), np.array(labels))
    if min(labels) >= 0:
        with pytest.raises(InputError, match="at least two classes, and one of them with two images"):
            far_thresholds(np.eye(3), np.array(labels))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("far", [0.3, 0.05, 0.002])
def test_the_threshold_of_a_false_accept_rate_keeps_it_as_loosely_as_can_be(seed, far):
    rows, labels = clustered(seed)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    negatives = sorted((rows[a] @ rows[b] for a, b in pairs if labels[a] != labels[b]), reverse=True)
    (found,) = far_thresholds(rows, labels, fars=[far])
    accepted = int(far * len(negatives))
    assert found.pairs == len(negatives) and found.low <= found.similarity <= found.high
    assert np.sum(np.array(negatives) >= found.similarity - 1e-6) == accepted
    positives = [rows[a] @ rows[b] for a, b in pairs if labels[a] == labels[b]]
    assert found.tar == pytest.approx(np.mean([p >= found.high - 1e-6 for p in positives]))


def test_a_rate_below_one_pair_has_no_threshold():
    (found,) = far_thresholds(*clustered(0), fars=[1e-5])
    assert math.isinf(found.similarity) and found.tar == 0
    assert "No result is called a match: 5 classes are too few" in far_in_words(found)


def test_drawn_pairs_give_nearly_the_threshold_of_all_pairs():
    rows, labels = clustered(1, images=800, classes=40)
    (exact,) = far_thresholds(rows, labels, fars=[0.05])
    (drawn,) = far_thresholds(rows, labels, fars=[0.05], max_pairs=20_000)
    assert exact.pairs > 300_000 and drawn.pairs == 20_000
    assert drawn.similarity == pytest.approx(exact.similarity, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("classes, noise", [(5, 0.15), (10, 0.3), (30, 0.15), (100, 0.3)])
def test_intervals_hold_the_threshold_of_the_population_in_95_of_100_simulations(classes, noise):
    """At 95 of 100, a hundred simulations give fewer than 89 once in a hundred trials."""
    population = wrong_from(np.random.default_rng(1), classes, noise)
    true = population.first(0.1)
    rng, inside = np.random.default_rng(2), 0
    for _ in range(100):
        (found,) = thresholds(*drawn_classes(rng, classes, noise=noise), precisions=[0.9])
        inside += found.low - population.step <= true <= found.high + population.step
    assert inside >= 89


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 10, 30, 100])
def test_intervals_of_a_rate_hold_the_threshold_of_the_population(classes):
    rng = np.random.default_rng(1)
    (true,) = far_thresholds(*drawn_classes(rng, 800, noise=0.3, images=2), fars=[0.01], max_pairs=10**6)
    found = [far_thresholds(*drawn_classes(rng, classes, noise=0.3), fars=[0.01])[0] for _ in range(100)]
    assert sum(one.low <= true.similarity <= one.high for one in found) >= 89
