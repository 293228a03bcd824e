"""Merged classes, wrong labels and held-out classes, counted one by one."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrank.common.checks import InputError
from tfrank.data.relabel import add_label_noise, hold_out, merge_classes

quick = settings(deadline=None, max_examples=60, derandomize=True)
NAMES = [-(2**62), -7, 0, 1, 2, 30, 400, 2**24 + 1, 2**62]
LABELS = np.repeat(np.arange(10), [3, 4, 5, 6, 7] * 2)

labels_of_any_kind = st.lists(st.sampled_from(NAMES), min_size=1, max_size=50).map(np.array)
seeds = st.integers(0, 2**32)


@quick
@given(labels_of_any_kind, st.integers(1, 9), seeds)
def test_merged_classes_are_unions_of_so_many_old_ones_and_the_last_of_what_is_left_too(labels, size, seed):
    count = len(set(labels.tolist()))
    size = min(size, count)
    parts = collections.defaultdict(set)
    for old, new in zip(labels.tolist(), merge_classes(labels, size, seed=seed).tolist()):
        parts[new].add(old)
    assert sum(map(len, parts.values())) == count
    assert sorted(parts) == list(range(count // size))
    assert [len(parts[new]) for new in range(count // size - 1)] == [size] * (count // size - 1)


@quick
@given(labels_of_any_kind, st.floats(0, 1), seeds)
def test_exactly_that_share_of_the_images_gets_the_label_of_another_class(labels, rate, seed):
    if len(set(labels.tolist())) > 1:
        before = labels.copy()
        noisy = add_label_noise(labels, rate, seed=seed)
        assert sum(one != other for one, other in zip(before, noisy)) == round(rate * len(labels))
        assert set(noisy.tolist()) <= set(labels.tolist()) and noisy.dtype == labels.dtype
        assert labels.tolist() == before.tolist()


def test_all_other_classes_and_all_images_are_equally_likely_to_be_taken():
    labels = np.repeat([5, 6, 7, 8], 10)
    taken, chosen, runs = collections.Counter(), collections.Counter(), 600
    for seed in range(runs):
        noisy = add_label_noise(labels, 0.25, seed=seed)
        rows = [row for row in range(40) if noisy[row] != labels[row]]
        chosen.update(rows)
        taken.update((labels[row], noisy[row]) for row in rows)
    # Means 500 and 150, standard deviations 22 and 11.
    assert len(taken) == 12 and all(390 < number < 610 for number in taken.values())
    assert len(chosen) == 40 and all(95 < number < 205 for number in chosen.values())


@quick
@given(labels_of_any_kind, st.data(), seeds)
def test_the_parts_share_no_class_and_together_hold_all_images_in_order(labels, data, seed):
    count = data.draw(st.integers(0, len(set(labels.tolist())) - 1))
    train, validation = (rows.tolist() for rows in hold_out(labels, count, seed=seed))
    assert sorted(train + validation) == list(range(len(labels)))
    assert train == sorted(train) and validation == sorted(validation)
    held_out = {labels[row] for row in validation}
    assert len(held_out) == count and not held_out & {labels[row] for row in train}


def test_the_classes_held_out_are_those_of_earlier_runs():
    held_out = [np.unique(LABELS[hold_out(LABELS, 3, seed=seed)[1]]).tolist() for seed in (0, 1, 42)]
    assert held_out == [[2, 4, 6], [4, 7, 8], [0, 5, 6]]


@pytest.mark.parametrize(
    "function, argument",
    [(merge_classes, 3), (add_label_noise, 0.5), (lambda *some, seed: hold_out(*some, seed=seed)[1], 4)],
)
def test_seeds_differ_and_the_same_seed_does_not(function, argument):
    runs = [function(LABELS, argument, seed=seed).tolist() for seed in range(4)]
    assert all(one != other for one, other in itertools.combinations(runs, 2))
    assert function(LABELS, argument, seed=2).tolist() == runs[2]


@pytest.mark.parametrize(
    "function, argument, message",
    [
        (merge_classes, 11, "Merging size=11 classes into one needs 11, but there are only 10"),
        (merge_classes, 0, "argument `size`. Expected an integer of at least 1"),
        (add_label_noise, 1.5, "argument `rate`. Expected a finite number of at least 0 and of at most 1"),
        (hold_out, 10, "Holding out 10 classes for validation leaves none of the 10 classes to train on"),
        (hold_out, -1, "argument `count`. Expected an integer of at least 0"),
    ],
)
def test_what_cannot_be_done_is_refused(function, argument, message):
    with pytest.raises(InputError, match=message):
        function(LABELS, argument)
    with pytest.raises(InputError, match="argument `seed`"):
        function(LABELS, 1, seed=-1)


def test_label_noise_among_one_class_is_refused():
    with pytest.raises(InputError, match="all images have the same class"):
        add_label_noise(np.array([3, 3, 3]), 0.5)
