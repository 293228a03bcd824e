"""Thresholds of a precision and of a false accept rate: equal to a plain loop over all possible ones."""

import itertools

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.evaluation.thresholds import far_thresholds, thresholds


def unit_rows(seed, rows, dim=4):
    found = np.random.default_rng(seed).normal(size=(rows, dim))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def nearest(rows, labels):
    """Similarity of the nearest neighbour of each row, and whether it has the row's label."""
    results = []
    for query in range(len(rows)):
        others = [other for other in range(len(rows)) if other != query]
        best = max(others, key=lambda other: (float(rows[query] @ rows[other]), -other))
        results.append((float(rows[query] @ rows[best]), labels[query] == labels[best]))
    return results


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("precision", [0.3, 0.5, 0.8, 1.0])
def test_the_threshold_is_the_smallest_that_reaches_the_precision(seed, precision):
    labels = np.random.default_rng(seed).integers(0, 4, 40)
    rows = unit_rows(seed, 40) + 2 * unit_rows(9, 4)[labels]
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    results = nearest(rows, labels)
    possible = []
    for threshold, _ in results:
        accepted = [right for similarity, right in results if similarity >= threshold]
        if sum(accepted) >= precision * len(accepted):
            possible.append(threshold)
    (found,) = thresholds(rows, labels, precisions=[precision])
    expected = min(possible, default=1.01)
    assert found.similarity == pytest.approx(expected, abs=1e-6) and found.low <= found.high
    right = [similarity for similarity, good in results if good]
    assert found.recall == pytest.approx(np.mean([s >= expected - 1e-6 for s in right]))


def test_no_threshold_reaches_a_precision_where_all_results_are_wrong():
    rows = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]) / 1.005
    (found,) = thresholds(rows, np.array([0, 1, 0, 1]), precisions=[0.9])
    assert found.similarity > 1 and found.recall == 0


def test_results_of_one_similarity_are_accepted_together():
    """Two right results, which are each other's nearest, then two wrong ones."""
    rows = np.array([[1, 0, 0, 0], [0.96, 0.28, 0, 0], [0, 0, 1, 0], [0, 0, 0.8, 0.6]])
    (found,) = thresholds(rows, np.array([0, 0, 1, 2]), precisions=[0.6])
    assert found.similarity == pytest.approx(0.96)


def test_the_interval_holds_the_threshold_of_the_population():
    """95 of 100 intervals should; by chance it is 89 or more in all but one of a hundred trials."""
    centres, noise = unit_rows(0, 300, 16), np.random.default_rng(1)

    def draw(classes):
        labels = np.repeat(np.arange(len(classes)), 6)
        rows = centres[classes][labels] + noise.normal(size=(len(labels), 16)) * 0.2
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels

    spread = []
    for _ in range(20):
        (found,) = thresholds(*draw(noise.choice(300, 40, replace=False)), precisions=[0.9])
        spread.append(found)
    inside = [one.low <= np.median([s.similarity for s in spread]) <= one.high for one in spread]
    assert sum(inside) >= 16


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_one_class_or_no_pair_is_refused(labels):
    with pytest.raises(InputError, match="at least two classes, and one of them with two images"):
        thresholds(np.eye(3), np.array(labels))
    with pytest.raises(InputError, match="at least two classes, and one of them with two images"):
        far_thresholds(np.eye(3), np.array(labels))


def clustered(seed, images=40, classes=5):
    """Rows of classes that overlap, and their labels."""
    labels = np.random.default_rng(seed).integers(0, classes, images)
    rows = unit_rows(seed, images) + 2 * unit_rows(9, classes)[labels]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("far", [0.3, 0.05, 0.002])
def test_the_threshold_of_a_false_accept_rate_is_the_smallest_that_keeps_it(seed, far):
    rows, labels = clustered(seed)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    negatives = sorted((rows[a] @ rows[b] for a, b in pairs if labels[a] != labels[b]), reverse=True)
    positives = [rows[a] @ rows[b] for a, b in pairs if labels[a] == labels[b]]
    (found,) = far_thresholds(rows, labels, fars=[far])
    accepted = int(far * len(negatives))
    assert found.pairs == len(negatives) and found.low <= found.high
    assert np.sum(np.array(negatives) >= found.similarity) == accepted
    assert negatives[accepted] < found.similarity <= negatives[accepted] + 1e-6
    assert found.tar == pytest.approx(np.mean([p >= found.similarity for p in positives]))


@pytest.mark.parametrize("function", [thresholds, far_thresholds])
def test_the_seed_changes_the_interval_and_not_the_threshold(function):
    found = [function(*clustered(2, images=120, classes=10), seed=seed)[0] for seed in (0, 0, 1, 2)]
    assert found[0] == found[1]
    assert len({one.similarity for one in found}) == 1 and len({(one.low, one.high) for one in found}) > 1


def test_a_rate_below_one_pair_has_no_threshold():
    rows, labels = clustered(0)
    (found,) = far_thresholds(rows, labels, fars=[1e-5])
    assert found.similarity > 1 and found.tar == 0


def test_drawn_pairs_give_nearly_the_threshold_of_all_pairs():
    rows, labels = clustered(1, images=800, classes=40)
    (exact,) = far_thresholds(rows, labels, fars=[0.05])
    (drawn,) = far_thresholds(rows, labels, fars=[0.05], max_pairs=20_000)
    assert exact.pairs > 300_000 and drawn.pairs == 20_000
    assert drawn.similarity == pytest.approx(exact.similarity, abs=0.01)
    assert drawn.tar == pytest.approx(exact.tar, abs=0.02)


def test_the_interval_of_a_rate_holds_the_threshold_of_the_population():
    found = [far_thresholds(*clustered(seed, images=240, classes=40), fars=[0.05])[0] for seed in range(20)]
    middle = np.median([one.similarity for one in found])
    assert sum(one.low <= middle <= one.high for one in found) >= 16
