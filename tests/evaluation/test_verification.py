"""ROC-AUC and TAR at FAR against all pairs, against scikit-learn, and worked by hand."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.evaluation import LABELS, ROWS, every_rows
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import verification as module
from tfrank.evaluation.verification import note, verification

DISTINCT = ROWS["distinct"]


def at_angles(*degrees):
    """`[images, 2]` rows, whose similarities are the cosines of the differences."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@every_rows
@pytest.mark.parametrize("block_pairs", [module.BLOCK_PAIRS, 7])
def test_all_pairs_are_those_of_the_plain_loops(monkeypatch, rows, block_pairs):
    monkeypatch.setattr(module, "BLOCK_PAIRS", block_pairs)
    positives, negatives = oracle.pair_similarities(rows, LABELS)
    fars = {far: int(round(far * len(negatives), 6)) for far in (0.5, 0.1, 0.01, 1e-3)}
    wanted = {
        "roc_auc": pytest.approx(oracle.roc_auc(positives, negatives)),
        **{f"tar_at_far_{far:g}": oracle.tar_at_far(positives, negatives, n) for far, n in fars.items()},
        **{"positive_pairs": len(positives), "all_positive_pairs": len(positives)},
        **{"negative_pairs": len(negatives), "all_negative_pairs": len(negatives)},
    }
    got = verification(rows, LABELS, fars=tuple(fars))
    assert 0 <= got.pop("opis") <= 0.25  # See test_opis.
    assert got == wanted
    assert note(got, tuple(fars)) == ""
    positive = np.repeat([1, 0], [len(positives), len(negatives)])
    assert got["roc_auc"] == pytest.approx(roc_auc_score(positive, [*positives, *negatives]))


def test_verification_by_hand():
    """Positives: 20 and 70 degrees apart. Negatives: 30, 50, 60, 80, ... degrees, the nearest first."""
    rows, labels = at_angles(0, 20, 50, 120), np.array([4, 4, -9, -9])
    # Negatives: 50 - 0, 120 - 0, 50 - 20 and 120 - 20 degrees.
    got = verification(rows, labels, fars=[0.25, 0.5, 0.75, 0.2])
    assert got == {
        # 20 is above all four, 70 above 100 and 120.
        "roc_auc": pytest.approx((4 + 2) / 8),
        # 30 is accepted; of the others 50 is the nearest, then 100.
        "tar_at_far_0.25": 0.5,
        "tar_at_far_0.5": 1.0,
        "tar_at_far_0.75": 1.0,
        **{"positive_pairs": 2, "negative_pairs": 4, "all_positive_pairs": 2, "all_negative_pairs": 4},
    }
    assert note(got, [0.25, 0.2, 0.01]) == (
        "FAR 0.2, 0.01 left out: 4 negative pairs are too few for such a rate."
    )


def test_a_positive_as_similar_as_a_refused_negative_is_refused():
    """A collapsed model must not look good: all similarities are 1."""
    got = verification(np.ones([20, 1], np.float32), np.arange(20) // 2, fars=[0.1, 0.9])
    assert (got["roc_auc"], got["tar_at_far_0.1"], got["tar_at_far_0.9"]) == (0.5, 0, 0)


@pytest.mark.parametrize(
    ("far", "negatives", "accepted"), [(0.29, 100, 29), (0.1, 30, 3), (0.1, 39, 3), (1e-3, 999, 0)]
)
def test_so_many_negatives_are_accepted_as_the_share_says(far, negatives, accepted):
    similarities = np.arange(negatives)
    assert module._accepted(far, negatives) == accepted
    # Of the negatives 0, 1, ... so many are above the greatest refused one, which is no positive's match.
    assert module._tar(np.array([negatives - accepted - 1, negatives]), similarities, accepted) == 0.5


def test_a_sample_of_the_pairs_is_near_all_of_them_and_says_so():
    every, some = (verification(DISTINCT, LABELS, fars=[0.1], max_pairs=n) for n in (1_142, 500))
    assert (every["positive_pairs"], every["negative_pairs"]) == (628, 1142)
    assert every == verification(DISTINCT, LABELS, fars=[0.1])
    assert (some["positive_pairs"], some["negative_pairs"]) == (500, 500)
    assert (some["all_positive_pairs"], some["all_negative_pairs"]) == (628, 1142)
    assert some["roc_auc"] != every["roc_auc"]
    assert some["roc_auc"] == pytest.approx(every["roc_auc"], abs=0.05)
    assert note(some, [0.1]) == (
        "500 of 628 positive pairs, drawn at random. 500 of 1,142 negative pairs, drawn at random."
    )
    assert some == verification(DISTINCT, LABELS, fars=[0.1], max_pairs=500, seed=0)
    assert some != verification(DISTINCT, LABELS, fars=[0.1], max_pairs=500, seed=1)


def test_every_negative_pair_is_drawn_as_often(monkeypatch):
    """1,142 negative pairs in 30 draws of 1,000: each 26 times on average, and none far from that."""
    every, drawn = np.sort(oracle.pair_similarities(DISTINCT, LABELS)[1]), []
    auc = module._roc_auc
    monkeypatch.setattr(module, "_roc_auc", lambda p, n: drawn.append(n) or auc(p, n))
    for seed in range(30):
        verification(DISTINCT, LABELS, max_pairs=1000, seed=seed)
    # Of similarities that are rounded otherwise the nearest are the same.
    which = np.searchsorted((every[1:] + every[:-1]) / 2, np.concatenate(drawn))
    counts, mean = np.bincount(which, minlength=1142), 30_000 / 1142
    assert np.all(np.abs(counts - mean) < 6 * np.sqrt(mean))
    assert np.var(counts) == pytest.approx(mean, rel=0.2)


def test_a_memory_map_gives_the_numbers_of_the_array(tmp_path):
    np.save(tmp_path / "rows.npy", DISTINCT)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert verification(mapped, LABELS) == verification(DISTINCT, LABELS)


@pytest.mark.parametrize("labels", [np.zeros(60, int), np.arange(60)])
def test_that_there_are_no_pairs_is_said(labels):
    with pytest.raises(InputError, match="images of two classes, and a class with two images"):
        verification(DISTINCT, labels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fars": [0.1, 0]}, "`fars`. Expected a finite number above 0 and below 1. Received: fars=0"),
        ({"fars": [1]}, "`fars`. Expected a finite number above 0 and below 1. Received: fars=1"),
        ({"fars": 0.1}, "`fars`. Expected a list of numbers. Received: fars=0.1"),
        ({"seed": -1}, "`seed`. Expected an integer of at least 0"),
        ({"max_pairs": 0}, "`max_pairs`. Expected an integer of at least 1. Received: max_pairs=0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        verification(DISTINCT, LABELS, **arguments)
