"""Labels that look wrong, on rows whose wrong labels are known."""

import numpy as np
import pytest

from tfrank.search.label_review import doubtful_labels


def noisy(seed=0, classes=8, each=20, wrong=8):
    """Rows around the means of classes, their true labels, and labels of which some are wrong."""
    random = np.random.default_rng(seed)
    true = np.repeat(np.arange(classes), each)
    rows = random.normal(size=(classes, 16))[true] + 0.3 * random.normal(size=(classes * each, 16))
    labels, places = true.copy(), random.choice(len(true), wrong, replace=False)
    labels[places] = (true[places] + random.integers(1, classes, wrong)) % classes
    return rows.astype("float32"), true, labels, set(places.tolist())


@pytest.mark.parametrize("seed", range(4))
def test_most_wrong_labels_and_no_others_are_listed_with_the_right_class(seed):
    rows, true, labels, wrong = noisy(seed)
    doubts = doubtful_labels(rows, labels)
    assert {doubt.row for doubt in doubts} <= wrong and len(doubts) >= 0.75 * len(wrong)
    assert all(doubt.suggestion == true[doubt.row] for doubt in doubts)
    margins = [doubt.margin for doubt in doubts]
    assert margins == sorted(margins, reverse=True) and all(0 < margin <= 1 for margin in margins)


def test_right_labels_of_apart_classes_are_not_doubted():
    rows, true, *_ = noisy()
    assert doubtful_labels(rows, true) == []


def test_rows_without_a_label_or_alone_in_their_class_are_not_judged():
    rows, _, labels, _ = noisy()
    labels[:5] = -1
    labels[5] = 99
    assert not {doubt.row for doubt in doubtful_labels(rows, labels)} & set(range(6))


@pytest.mark.parametrize("labels", [[-1] * 6, [0] * 6, [0, 0, 0, 1, 2, 3]])
def test_fewer_than_two_classes_leave_nothing_to_doubt(labels):
    assert doubtful_labels(np.eye(6, 4, dtype="float32"), np.array(labels)) == []
