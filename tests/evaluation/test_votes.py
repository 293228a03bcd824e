"""Votes of nearest images against plain loops, and what a threshold of their score promises."""

import math

import numpy as np
import pytest

from tests.evaluation.populations import drawn_classes
from tests.reference import open_sets as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import votes as module
from tfrank.evaluation.votes import acceptance, held_out, in_words, votes


@pytest.mark.parametrize("seed", range(3))
def test_label_share_and_score_are_those_of_a_loop(seed):
    rng = np.random.default_rng(seed)
    similarity = -np.sort(-rng.uniform(-1, 1, size=(40, 6)), axis=1)
    similarity[:9, 4:], labels = -np.inf, rng.integers(0, 3, size=(40, 6))
    sizes = np.array([6, 9, 30])
    found = votes(similarity, labels, sizes[labels])
    for row, got in enumerate(zip(*found)):
        assert got == pytest.approx(
            oracle.vote(similarity[row], labels[row].tolist(), sizes, module.TEMPERATURE)
        )


def test_of_equal_votes_the_nearest_decides_and_without_images_nothing_does():
    two = np.ones([1, 2], int)
    assert votes(two / 2, np.array([[7, 3]]), two).label == 7
    label, share, score = votes(two * -np.inf, -two, two)
    assert label == -1 and share == 0 and score < -2


@pytest.mark.parametrize("some", [None, 4])
def test_each_image_is_classified_without_itself_and_without_its_class(some):
    rows, labels = drawn_classes(np.random.default_rng(0), 8, noise=0.3)
    queries = np.ones(len(rows), bool) if some is None else labels < some
    found = held_out(rows, labels, queries=queries)
    assert found.own.tolist() == labels[queries].tolist()
    for place, query in enumerate(np.flatnonzero(queries)):
        others = [(rows[i], int(labels[i])) for i in range(len(rows)) if i != query]
        without = [(row, label) for row, label in others if label != labels[query]]
        for given, answers in ((others, found.present), (without, found.absent)):
            wanted = oracle.classified(rows[query], given, module.NEAREST, module.TEMPERATURE)
            assert [part[place] for part in answers] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("far", [0.3, 0.1])
def test_the_threshold_lets_no_more_images_of_absent_classes_pass_than_are_wanted(far):
    found = held_out(*drawn_classes(np.random.default_rng(0), 30, noise=0.2))
    got = acceptance(found, far)
    assert np.sum(found.absent.score >= got.similarity - 1e-6) == int(far * len(found.own))
    assert got.low <= got.similarity < got.high < math.inf and got.classes == 30
    right = (found.present.label == found.own) & (found.present.score >= got.high - 1e-6)
    assert got.tar == pytest.approx(right.mean()) and 0.1 < got.tar < 1
    assert f"{100 * got.tar:.0f} % of the images of these classes, rightly" in in_words(got)


def test_too_few_classes_promise_nothing_and_the_sentence_says_so():
    rows, labels = drawn_classes(np.random.default_rng(0), 4, noise=0.05, images=60)
    got = acceptance(held_out(rows, labels), 0.1)
    assert math.isinf(got.high) and in_words(got) == (
        "No image is called one of a class: 4 classes are too few to promise it of at most 10 % of the images"
        " of other classes; 5 are needed."
    )
    with pytest.raises(InputError, match="images of two classes are needed"):
        held_out(rows[:60], labels[:60])


@pytest.mark.slow
@pytest.mark.parametrize("classes", [10, 30, 100])
def test_of_other_classes_no_more_pass_in_95_of_100_simulations(classes):
    """At 95 of 100, a hundred simulations give fewer than 89 once in a hundred trials."""
    rng, kept = np.random.default_rng(1), 0
    others, _ = drawn_classes(rng, 1000, noise=0.2, images=2)
    for _ in range(100):
        rows, labels = drawn_classes(rng, classes, noise=0.2)
        scores = module.of_similarities(others @ rows.T, labels).score
        kept += np.mean(scores >= acceptance(held_out(rows, labels), 0.1).high) <= 0.1
    assert kept >= 89
