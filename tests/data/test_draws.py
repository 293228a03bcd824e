"""Draws: the rule of straddling, orders of their own, pairs of categories, and what is kept."""

import collections
import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sampler_cases import walk
from tfrank.data import draws
from tfrank.data.draws import CLASSES, category_pairs, draw, permutation

quick = settings(deadline=None, max_examples=60, derandomize=True)


@pytest.mark.parametrize("take", range(1, 8))
@pytest.mark.parametrize("more", [0, 1, 2, 3, 5, 11])
def test_a_turn_that_straddles_two_epochs_follows_the_rule(take, more):
    for turn, (things, epochs) in enumerate(walk(3, CLASSES, take + more, take, turns=60)):
        got_things, got_epochs = draw(3, CLASSES, turn, take + more, take)
        assert (got_things.tolist(), got_epochs.tolist()) == (things, epochs)


@pytest.mark.parametrize("size, take", [(1, 4), (3, 4), (3, 7), (4, 9)])
def test_a_turn_of_more_things_than_there_are_goes_through_plain_epochs(size, take):
    places = [(epoch, thing) for epoch in range(99) for thing in permutation(3, 5, epoch, size).tolist()]
    for turn in range(20):
        things, epochs = draw(3, 5, turn, size, take)
        assert list(zip(epochs, things)) == places[turn * take : (turn + 1) * take]


def test_a_late_batch_of_almost_all_classes_is_drawn_too():
    """1,623 classes, 1,024 a batch: it takes 1,024 epochs until one begins with a batch again."""
    classes, epochs = draw(0, CLASSES, 1600, 1623, 1024)
    assert len(set(classes)) == 1024 and epochs[0] == 1600 * 1024 // 1623


def test_epochs_and_classes_have_orders_of_their_own():
    orders = [permutation(0, key, epoch, 20).tolist() for key in (CLASSES, 0, 1) for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def test_a_long_order_is_made_once_an_epoch_and_old_ones_are_forgotten(monkeypatch):
    """Two orders of four million are 64 MiB, of the plain kind and of the visited one."""
    made, key_of = [], draws._Key
    monkeypatch.setattr(draws, "_Key", lambda *words: made.append(words) or key_of(*words))
    size, take, epochs = 2**22, 1000, 5
    permutation.cache_clear(), draws.epoch_order.cache_clear()
    tracemalloc.start()
    for epoch in range(epochs):
        # Two batches are drawn at once, so a later one may come first.
        for later in (1, 0, 3, 2):
            draw(9, 0, epoch * size // take + later, size, take)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    permutation.cache_clear(), draws.epoch_order.cache_clear()
    assert len(made) == epochs
    assert kept < 140 * 2**20


@st.composite
def halves_that_can_be_paired(draw_from):
    halves = draw_from(st.lists(st.integers(1, 9), min_size=1, max_size=6), label="halves")
    rest = max(max(halves) * 2 - sum(halves), 0)
    rest += (sum(halves) + rest) % 2
    return tuple([*halves, rest] if rest else halves)


@quick
@given(halves_that_can_be_paired(), st.integers(0, 2**32), st.integers(0, 5))
def test_every_half_of_an_epoch_is_paired_with_one_of_another_category(halves, seed, epoch):
    pairs, turns = category_pairs(seed, epoch, halves)
    seen = collections.Counter()
    for (one, other), befores in zip(pairs.tolist(), turns.tolist()):
        assert one != other
        for category, before in zip((one, other), befores):
            assert before == seen[category]
            seen[category] += 1
    assert seen == dict(enumerate(halves))


def test_most_pairs_of_twelve_categories_meet_in_each_epoch_and_all_in_ten():
    halves = (60, 50, 70, 80, 65, 55, 62, 40, 90, 120, 67, 51)
    epochs = [category_pairs(0, epoch, halves)[0].tolist() for epoch in range(10)]
    met = [{frozenset(pair) for pair in pairs} for pairs in epochs]
    assert min(map(len, met)) > 66 / 2 and len(set.union(*met)) == 66
    assert all(one != other for one, other in itertools.combinations(epochs, 2))
    assert category_pairs(1, 0, halves)[0].tolist() != epochs[0]
