"""Classes that look like one, and a class that looks like two, on rows of known classes."""

import numpy as np
import pytest

from tfrank.search.class_review import double_classes, mixed_classes


def rows_of(seed, classes=12, each=16):
    """Rows around the means of classes, and their labels. Classes 2k and 2k + 1 are similar."""
    random = np.random.default_rng(seed)
    pairs = random.normal(size=(classes // 2, 32)).repeat(2, axis=0)
    means = pairs + 0.6 * random.normal(size=(classes, 32))
    labels = np.arange(classes).repeat(each)
    return (means[labels] + 0.4 * random.normal(size=(len(labels), 32))).astype("float32"), labels


@pytest.mark.parametrize("seed", range(3))
def test_halves_of_a_class_and_no_other_pair_look_like_one(seed):
    rows, labels = rows_of(seed)
    assert mixed_classes(rows, labels) == []
    labels[labels == 3] += 10 * (np.arange(16) % 2)
    assert [(pair.first, pair.second) for pair in mixed_classes(rows, labels)] == [(3, 13)]


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_under_one_label_and_no_other_look_like_two(seed):
    rows, labels = rows_of(seed)
    assert double_classes(rows, labels) == []
    labels[labels == 8] = 1
    [found] = double_classes(rows, labels)
    assert found.label == 1
    assert sorted(sorted(part.tolist()) for part in found.parts) == [[*range(16, 32)], [*range(128, 144)]]


@pytest.mark.parametrize("labels", [[-1] * 12, [0] * 12, [*range(12)], [0] * 6 + [1] * 6])
def test_too_few_classes_or_images_are_no_finding(labels):
    rows = np.random.default_rng(0).normal(size=(12, 8)).astype("float32")
    rows[np.array(labels) == 1] += 9
    assert (mixed_classes(rows, np.array(labels)), double_classes(rows, np.array(labels))) == ([], [])
