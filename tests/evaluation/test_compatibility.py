"""What new embeddings find among old ones, beside old in old and new in new."""

import numpy as np
import pytest

from tfrank.evaluation.compatibility import measure_upgrade, sentences

DRAW = np.random.default_rng(0)
LABELS = np.repeat(np.arange(12), 5)
CENTRES = DRAW.normal(size=[12, 16])


def rows(noise):
    found = CENTRES[LABELS] + noise * DRAW.normal(size=[60, 16])
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


OLD, NEW = rows(1.2), rows(0.6)


def by_loops(queries, gallery):
    """Mean Recall@1 and mean AP of each image among all others."""
    recalls, precisions = [], []
    for query in range(60):
        others = [row for row in range(60) if row != query]
        order = sorted(others, key=lambda row: -float(queries[query] @ gallery[row]))
        right = [LABELS[row] == LABELS[query] for row in order]
        recalls.append(right[0])
        found = np.flatnonzero(right)
        precisions.append(np.mean([(place + 1) / (rank + 1) for place, rank in enumerate(found)]))
    return np.mean(recalls), np.mean(precisions)


def test_three_searches_are_measured_without_the_image_itself():
    measured = measure_upgrade(OLD, OLD, NEW, LABELS)
    for name, pair in {"old": (OLD, OLD), "between": (NEW, OLD), "new": (NEW, NEW)}.items():
        recall, precision = by_loops(*pair)
        assert getattr(measured["Recall@1"], name).mean == pytest.approx(recall, abs=1e-6)
        assert getattr(measured["mAP"], name).mean == pytest.approx(precision, abs=1e-6)
    one = measured["mAP"]
    assert one.difference.mean == pytest.approx(one.between.mean - one.old.mean)
    assert one.kept == pytest.approx(one.difference.mean / (one.new.mean - one.old.mean))
    assert one.difference.low < one.difference.mean < one.difference.high


def test_an_upgrade_that_is_not_compatible_is_said():
    (*_, said) = sentences(measure_upgrade(OLD, NEW[:, ::-1].copy(), NEW, LABELS), named="mapped embeddings")
    assert said.startswith("New queries find less in mapped embeddings than old queries do: Recall@1 -")
    lines = sentences(measure_upgrade(OLD, OLD, NEW, LABELS))
    assert (
        len(lines) == 2 and lines[0].startswith("Recall@1: old in old ") and "Kept of the gain: " in lines[0]
    )


def test_images_without_a_class_are_left_out():
    labels = np.where(np.arange(60) < 5, -1, LABELS)
    whole = measure_upgrade(OLD[5:], OLD[5:], NEW[5:], LABELS[5:])
    part = measure_upgrade(OLD, OLD, NEW, labels, ignore_label=-1)
    assert part["mAP"].between.mean == pytest.approx(whole["mAP"].between.mean)
