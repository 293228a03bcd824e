"""The bootstrap interval: by hand, against a plain loop, and how often it holds the truth."""

import math

import numpy as np
import pytest

from tests.cases import slow
from tfrank.common.checks import InputError
from tfrank.evaluation.report import bootstrap
from tfrank.evaluation.report.bootstrap import paired_bootstrap

RNG = np.random.default_rng(0)
BEFORE = RNG.random(300)
AFTER = np.clip(BEFORE + RNG.normal(0.02, 0.1, 300), 0, 1)
CLASSES = RNG.integers(40, size=300) - 2**40


def by_plain_loops(differences, groups, samples, student):
    """Quantiles of the mean of groups drawn one by one, from Student's t as printed in tables."""
    rng = np.random.default_rng(7)
    members = [[d for d, its in zip(differences, groups) if its == group] for group in sorted(set(groups))]
    means = []
    for _ in range(samples):
        drawn = [d for group in rng.choice(len(members), len(members)) for d in members[group]]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    share = normal(-student * math.sqrt(len(members) / (len(members) - 1)))
    return means[round(share * samples)], means[round((1 - share) * samples)]


def normal(value):
    """The share of the normal distribution below a value."""
    return math.erfc(-value / math.sqrt(2)) / 2


@pytest.mark.parametrize(("groups", "student"), [(None, 1.968), (CLASSES, 2.023)])
def test_the_interval_is_that_of_a_plain_loop(groups, student):
    got = paired_bootstrap(BEFORE, AFTER, groups=groups, samples=20_000)
    assert (got.mean, got.queries) == (pytest.approx(np.mean(AFTER - BEFORE)), 300)
    each = range(300) if groups is None else groups.tolist()
    low, high = by_plain_loops((AFTER - BEFORE).tolist(), each, 3000, student)
    # The quantiles of so few means are uncertain by a few percent of the width.
    assert (got.low, got.high) == pytest.approx((low, high), abs=0.07 * (high - low))


@pytest.mark.parametrize(
    ("groups", "confidence", "student"),
    [(5, 0.95, 2.7764), (5, 0.8, 1.5332), (10, 0.95, 2.2622), (10, 0.99, 3.2498), (31, 0.9, 1.6973)],
)
def test_shares_are_expanded_by_the_printed_tables_of_students_t(groups, confidence, student):
    wanted = normal(-student * math.sqrt(groups / (groups - 1)))
    assert bootstrap._expanded((1 - confidence) / 2, groups) == pytest.approx(wanted, rel=1e-3)


def test_an_interval_by_hand():
    """Five draws from 0, 0, 0, 0, 1: their mean is at most 0, 1/5, 2/5, 3/5, 4/5 with probability 0.33, 0.74,
    0.942, 0.993, 0.9997. Student's t with 4 degrees is 1.533 at confidence 0.8, 2.776 at 0.95 and 0.134 at
    0.1; times sqrt(5 / 4), it leaves out 0.043, 0.00095 and 0.44 of a normal distribution on a side."""
    zeros, one = np.zeros(5), np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    assert paired_bootstrap(zeros, one, confidence=0.8) == (0.2, 0, 0.6, 5)
    assert paired_bootstrap(one, zeros, confidence=0.8) == (-0.2, -0.6, 0, 5)
    assert paired_bootstrap(zeros, one) == (0.2, 0, 0.8, 5)
    assert paired_bootstrap(zeros, one, confidence=0.1) == (0.2, 0.2, 0.2, 5)


def test_classes_are_drawn_whole():
    """A class of three queries at 1, four of one at 0: drawn k times in five, its mean is 3k / (2k + 5)."""
    groups, after = np.array([5, 5, 3, 5, 9, -1, 0]), np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert paired_bootstrap(np.zeros(7), after, groups=groups, confidence=0.8) == (3 / 7, 0, 9 / 11, 7)
    assert paired_bootstrap(np.zeros(7), after, groups=groups, confidence=0.1) == (3 / 7, 3 / 7, 3 / 7, 7)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_below_five_groups_nothing_is_claimed(count):
    groups, nothing = np.arange(60) % count, (1, -math.inf, math.inf)
    assert paired_bootstrap(np.zeros(60), np.ones(60), groups=groups) == (*nothing, 60)
    assert paired_bootstrap(np.zeros(count), np.ones(count)) == (*nothing, count)


def test_groups_without_both_values_do_not_count_among_the_five():
    groups, after = np.arange(60) % 5, np.ones(60)
    assert paired_bootstrap(np.zeros(60), after, groups=groups) == (1, 1, 1, 60)
    after[groups == 3] = math.nan
    assert paired_bootstrap(np.zeros(60), after, groups=groups) == (1, -math.inf, math.inf, 48)


def test_classes_whose_queries_agree_give_a_wider_interval():
    shift = RNG.normal(size=40)[CLASSES + 2**40]
    alone, whole = (paired_bootstrap(np.zeros(300), shift, groups=groups) for groups in (None, CLASSES))
    assert whole.high - whole.low > 2 * (alone.high - alone.low)


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_queries_without_both_values_are_left_out(missing):
    before, after = BEFORE.copy(), AFTER.copy()
    before[:10], after[5:20] = missing, missing
    got = paired_bootstrap(before, after, groups=CLASSES)
    assert got == paired_bootstrap(BEFORE[20:], AFTER[20:], groups=CLASSES[20:])
    assert got.queries == 280


def test_one_seed_gives_one_interval_in_any_number_of_blocks(monkeypatch):
    first, again = (paired_bootstrap(BEFORE, AFTER, samples=999, seed=5) for _ in range(2))
    assert first == again
    assert first[1:3] != paired_bootstrap(BEFORE, AFTER, samples=999, seed=6)[1:3]
    monkeypatch.setattr(bootstrap, "BLOCK_DRAWS", 1)
    blocks = paired_bootstrap(BEFORE, AFTER, samples=999, seed=5)
    assert blocks[1:3] == pytest.approx(first[1:3], abs=0.1 * (first.high - first.low))


@pytest.mark.parametrize("in_classes", [False, True])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(in_classes):
    """200 data sets of 40 classes of 3 queries, whose true difference is 0.5."""
    rng, held = np.random.default_rng(3), 0
    classes = np.repeat(np.arange(40), 3)
    for seed in range(200):
        noise = rng.exponential(size=40)[classes] - 1 if in_classes else rng.exponential(size=120) - 1
        before = rng.normal(size=120)
        groups = classes if in_classes else None
        got = paired_bootstrap(before, before + 0.5 + noise, groups=groups, samples=500, seed=seed)
        held += got.low <= 0.5 <= got.high
    assert 0.9 <= held / 200 <= 0.99


@pytest.mark.parametrize(("classes", "least"), [(5, 0.89), slow(6, 0.89), slow(10, 0.925)])
def test_equal_models_are_called_equal_with_few_classes_too(classes, least):
    """1000 data sets of 20 queries a class, with an effect of the class. The middle 95 % of the means hold 0
    in 84 %, 86 % and 90 % of such; that five classes are all on one side of it has a probability of 6 %."""
    rng, held = np.random.default_rng(4), 0
    groups = np.repeat(np.arange(classes), 20)
    for seed in range(1000):
        after = rng.normal(size=classes)[groups] + rng.normal(size=len(groups))
        got = paired_bootstrap(np.zeros(len(groups)), after, groups=groups, samples=1000, seed=seed)
        held += got.low <= 0 <= got.high
    assert least <= held / 1000 <= 0.97


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BEFORE, AFTER[1:], None), "Received: 300, 299 and 300."),
        ((BEFORE, AFTER, CLASSES[1:]), "Received: 300, 300 and 299."),
        ((BEFORE, np.full(300, math.nan), None), "no query with a value of both models"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(arguments, message):
    before, after, groups = arguments
    with pytest.raises(InputError, match=message):
        paired_bootstrap(before, after, groups=groups)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ({"samples": 0}, "`samples`. Expected an integer of at least 1"),
        ({"seed": -1}, "`seed`. Expected an integer of at least 0"),
        ({"confidence": 1}, "`confidence`. Expected a finite number above 0 and below 1"),
        ({"confidence": 95}, "`confidence`. Expected a finite number above 0 and below 1"),
    ],
)
def test_bad_arguments_are_named(argument, expected):
    with pytest.raises(InputError, match=expected):
        paired_bootstrap(BEFORE, AFTER, **argument)


@pytest.mark.parametrize("block_draws", [bootstrap.BLOCK_DRAWS, 20, 1])
def test_so_many_means_are_drawn_as_samples_are_asked_for(monkeypatch, block_draws):
    monkeypatch.setattr(bootstrap, "BLOCK_DRAWS", block_draws)
    assert bootstrap._resampled_means(np.ones(3), np.ones(3), 20, 0).tolist() == [1] * 20
