"""The metrics of open sets against plain loops, and their intervals."""

import numpy as np
import pytest

from tests.evaluation.populations import drawn_classes
from tests.reference import open_sets as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import votes
from tfrank.evaluation.open_sets import divided, note, open_set


def by_loops(rows, labels, parts):
    """The known queries, (score, right), and the scores of the unknown ones."""
    gallery = [(rows[i], int(labels[i])) for i in parts.gallery]
    answers = [
        [oracle.classified(rows[i], gallery, votes.NEAREST, votes.TEMPERATURE) for i in some]
        for some in (parts.known, parts.unknown)
    ]
    known = [(score, label == labels[i]) for i, (label, _, score) in zip(parts.known, answers[0])]
    return known, [score for _, _, score in answers[1]]


@pytest.mark.parametrize("seed", range(3))
def test_all_metrics_and_intervals_are_those_of_the_loops(seed):
    rows, labels = drawn_classes(np.random.default_rng(seed), 24, noise=0.3, images=8)
    found, parts = open_set(rows, labels, far=0.3, seed=seed), divided(labels, seed=seed)
    known, unknown = by_loops(rows, labels, parts)
    accuracy, auroc, oscr = oracle.rates(known, unknown)
    assert 0 < oscr < auroc < 1
    wanted = {"accuracy": accuracy, "auroc": auroc, "oscr": oscr}
    assert {name: found[f"open_set_{name}"] for name in wanted} == pytest.approx(wanted)
    gallery = votes.held_out(rows[parts.gallery], labels[parts.gallery])
    kept = oracle.at_threshold(known, unknown, votes.acceptance(gallery, 0.3).high)
    assert (found["open_set_known"], found["open_set_unknown"]) == pytest.approx(kept)
    assert found["open_set_known_queries"] == 48 and found["open_set_unknown_queries"] == 96
    over = [sum(right * (score > u) for u in unknown) / len(unknown) for score, right in known]
    under = [sum(right * (score > u) for score, right in known) / len(known) for u in unknown]
    variance = oracle.spread(over, labels[parts.known].tolist(), oscr)
    variance += oracle.spread(under, labels[parts.unknown].tolist(), oscr)
    # Student's t of 11 degrees of freedom.
    half = 2.201 * variance**0.5
    ends = found["open_set_oscr_low"], found["open_set_oscr_high"]
    assert ends == pytest.approx((oscr - half, oscr + half), abs=1e-3)


def test_half_of_the_classes_are_unknown_and_half_of_the_images_of_each_other_one_the_gallery():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(9), [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    draws = {tuple(np.unique(labels[divided(labels, seed=seed).unknown])) for seed in range(20)}
    assert len(draws) > 10 and {len(draw) for draw in draws} == {4}
    parts = divided(labels)
    assert sorted(np.concatenate(parts)) == list(range(45))
    for one in np.unique(labels[parts.gallery]):
        gallery, known = (np.sum(labels[rows] == one) for rows in parts[:2])
        assert gallery - known in (0, 1)


def test_equal_scores_count_half_and_few_classes_have_neither_interval_nor_threshold():
    found = open_set(np.ones([16, 1], np.float32), np.arange(16) // 4)
    assert found["open_set_auroc"] == 0.5 and "open_set_auroc_low" not in found
    assert "open_set_unknown" not in found and "too few for a threshold" in note(found)


@pytest.mark.parametrize("labels", [np.arange(12) // 4, np.arange(12)])
def test_what_cannot_be_divided_is_refused(labels):
    with pytest.raises(InputError, match="An open set needs images of four classes"):
        open_set(np.eye(12, dtype=np.float32), labels)


@pytest.mark.slow
def test_intervals_hold_the_value_of_the_population_in_95_of_100_simulations():
    """At 95 of 100, a hundred simulations give fewer than 89 once in a hundred trials."""
    rng = np.random.default_rng(1)
    found = [open_set(*drawn_classes(rng, 40, noise=0.3)) for _ in range(100)]
    for name in ("open_set_accuracy", "open_set_auroc", "open_set_oscr"):
        true = np.mean([one[name] for one in found])
        assert sum(one[f"{name}_low"] <= true <= one[f"{name}_high"] for one in found) >= 89
