"""OPIS against plain loops over all pairs, and worked by hand."""

import numpy as np
import pytest

from tests.evaluation import LABELS, every_rows
from tests.reference import metrics as oracle
from tfrank.evaluation.opis import FARS, ClassPairs, opis
from tfrank.evaluation.verification import verification


def on_circle(center, width, images):
    """Rows at equal steps around an angle, in degrees."""
    angles = np.radians(center + np.linspace(-width / 2, width / 2, images))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@every_rows
def test_opis_is_that_of_the_plain_loops(rows):
    _, negatives = oracle.pair_similarities(rows, LABELS)
    distances = np.sqrt(np.maximum(2 - 2 * np.quantile(np.float32(negatives), [1 - far for far in FARS]), 0))
    expected = oracle.opis(rows, LABELS, np.linspace(*distances, 101))
    assert verification(rows, LABELS)["opis"] == pytest.approx(expected, abs=1e-9)


def test_classes_of_one_width_are_consistent_and_others_are_not():
    labels = np.repeat(np.arange(6), 10)
    alike, unlike = (
        np.concatenate([on_circle(60 * place, width, 10) for place, width in enumerate(widths)])
        for widths in ([20] * 6, [5, 80] * 3)
    )
    same, different = (verification(rows, labels)["opis"] for rows in (alike, unlike))
    assert same < 1e-6 < 1e-2 < different


def test_opis_by_hand():
    """Class 0 has all its pairs near, class 1 none: U is the harmonic mean of 1 and specificity, and 0."""
    first = np.repeat([0, 1], 10)
    same = ClassPairs(np.repeat([1.0, -1.0], 10), first, first)
    negatives = ClassPairs(np.full(100, 0.5), np.zeros(100, int), np.ones(100, int))
    # At the only threshold every pair of two classes is accepted: specificity 0, so that no U is above 0.
    assert opis(same, negatives) == 0
    far = np.linspace(0.5, -0.5, 1000)
    negatives = ClassPairs(far, np.zeros(1000, int), np.ones(1000, int))
    specificity = 1 - np.linspace(0.01, 0.1, 101)
    utility = 2 * specificity / (1 + specificity)
    assert opis(same, negatives) == pytest.approx(np.mean(utility**2) / 4, rel=0.01)
    assert opis(same, ClassPairs(far, np.zeros(1000, int), np.full(1000, 2))) is None, "class 1 has no others"
    assert opis(same, ClassPairs(*(part[:99] for part in negatives))) is None, "too few for a FAR of 0.01"
