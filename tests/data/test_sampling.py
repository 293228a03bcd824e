"""The promise of a batch, held over epochs for any sizes; and the rule of straddling, by a plain walk."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrank.checks import InputError
from tfrank.data.sampling import CLASSES, ClassBalancedSampler, draw, permutation

quick = settings(deadline=None, max_examples=40, derandomize=True)


@st.composite
def samplers(draw_from):
    """A function that gives a fresh sampler, with the labels and the batch that it was made for."""
    sizes = draw_from(st.lists(st.integers(1, 9), min_size=1, max_size=9), label="images of each class")
    names = draw_from(st.permutations([-(2**62), -7, 0, 1, 2, 30, 400, 2**24 + 1, 2**62]))
    labels = np.repeat(np.array(names[: len(sizes)]), sizes)
    np.random.default_rng(len(labels)).shuffle(labels)
    arguments = {
        "classes_per_batch": draw_from(st.integers(1, len(sizes)), label="classes_per_batch"),
        "examples_per_class": draw_from(st.integers(1, 6), label="examples_per_class"),
        "seed": draw_from(st.integers(0, 2**32), label="seed"),
    }
    return lambda: ClassBalancedSampler(labels, **arguments), labels, arguments


def batches_by_class(sampler, labels, steps):
    """Each batch as a list of (class, its images), in the order of the batch."""
    for step in steps:
        numbers = sampler.batch(step).reshape(sampler.classes_per_batch, sampler.examples_per_class)
        for row in numbers:
            assert len(set(labels[row])) == 1
        yield [(labels[row[0]], row.tolist()) for row in numbers]


def spread(visits, things):
    counts = [visits[thing] for thing in things]
    return max(counts) - min(counts)


@quick
@given(samplers())
def test_a_batch_holds_exactly_the_classes_and_images_promised(case):
    build, labels, arguments = case
    sizes = collections.Counter(labels)
    for batch in batches_by_class(build(), labels, range(30)):
        assert len(batch) == len({label for label, _ in batch}) == arguments["classes_per_batch"]
        for label, images in batch:
            assert len(images) == arguments["examples_per_class"]
            assert len(set(images)) == len(images) or sizes[label] < len(images)


@quick
@given(samplers())
def test_visits_of_two_classes_and_of_two_images_of_a_class_never_differ_by_more_than_one(case):
    build, labels, _ = case
    visits_of_classes, visits_of_images = collections.Counter(), collections.Counter()
    members = {label: np.flatnonzero(labels == label) for label in set(labels)}
    for batch in batches_by_class(build(), labels, range(30)):
        visits_of_classes.update(label for label, _ in batch)
        assert spread(visits_of_classes, members) <= 1
        for label, images in batch:
            visits_of_images.update(images)
            assert spread(visits_of_images, members[label]) <= 1


@quick
@given(samplers())
def test_each_epoch_visits_every_class_once(case):
    build, labels, _ = case
    count = len(set(labels))
    batches = batches_by_class(build(), labels, itertools.count())
    places = (label for batch in batches for label, _ in batch)
    for _ in range(4):
        assert set(itertools.islice(places, count)) == set(labels)


@quick
@given(samplers(), st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_a_batch_is_the_same_alone_and_in_sequence(case, steps):
    build, _, _ = case
    sampler = build()
    sequence = [sampler.batch(step) for step in range(61)]
    for step in steps:
        permutation.cache_clear()
        np.testing.assert_array_equal(build().batch(step), sequence[step])


def walk(seed, key, size, take, turns):
    """Turns of `take` things of `size`, by walking through the epochs with a list of what is left.

    From DESIGN.md: "Epoch e is a stateless permutation of the classes; a batch that straddles two epochs
    takes from the second only classes it does not hold yet, the skipped ones come next".
    """
    left, epoch = [], -1
    for _ in range(turns):
        turn, epochs = [], []
        while len(turn) < take:
            if not left:
                epoch += 1
                left = permutation(seed, key, epoch, size).tolist()
            thing = next(thing for thing in left if thing not in turn)
            left.remove(thing)
            turn.append(thing)
            epochs.append(epoch)
        yield turn, epochs


@pytest.mark.parametrize("take", range(1, 8))
@pytest.mark.parametrize("more", [0, 1, 2, 3, 5, 11])
def test_a_turn_that_straddles_two_epochs_follows_the_rule(take, more):
    for turn, (things, epochs) in enumerate(walk(3, CLASSES, take + more, take, turns=60)):
        got_things, got_epochs = draw(3, CLASSES, turn, take + more, take)
        assert (got_things.tolist(), got_epochs.tolist()) == (things, epochs)


@quick
@given(samplers())
def test_classes_and_images_are_drawn_by_that_rule(case):
    build, labels, _ = case
    sampler, names = build(), np.unique(labels)
    take, steps = sampler.examples_per_class, 20
    members = [np.flatnonzero(labels == name) for name in names]
    # In epoch e a class is visited for the e-th time. A class smaller than a visit has no such rule.
    visits = {
        c: [images for images, _ in walk(sampler.seed, c, len(members[c]), take, steps)]
        for c in range(len(names))
        if len(members[c]) >= take
    }
    classes = walk(sampler.seed, CLASSES, len(names), sampler.classes_per_batch, steps)
    for batch, (turn, epochs) in zip(batches_by_class(sampler, labels, range(steps)), classes):
        assert [label for label, _ in batch] == names[turn].tolist()
        for (_, images), c, epoch in zip(batch, turn, epochs):
            assert c not in visits or members[c][visits[c][epoch]].tolist() == images


def test_a_late_batch_of_almost_all_classes_is_drawn_too():
    """1,623 classes, 1,024 a batch: it takes 1,024 epochs until one begins with a batch again."""
    classes, epochs = draw(0, CLASSES, 1600, 1623, 1024)
    assert len(set(classes)) == 1024 and epochs[0] == 1600 * 1024 // 1623


LABELS = np.repeat(np.arange(12), [3, 4, 5] * 4)


def first_batches(**arguments):
    sampler = ClassBalancedSampler(LABELS, **{"classes_per_batch": 4, "examples_per_class": 2, **arguments})
    return [sampler.batch(step).tolist() for step in range(6)]


def test_seeds_differ_and_the_same_seed_does_not():
    runs = [first_batches(seed=seed) for seed in range(4)]
    assert all(one != other for one, other in itertools.combinations(runs, 2))
    assert first_batches(seed=2) == runs[2]


def test_epochs_and_classes_have_orders_of_their_own():
    orders = [permutation(0, key, epoch, 20).tolist() for key in (CLASSES, 0, 1) for epoch in range(3)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def test_drop_leaves_small_classes_out_and_repeat_does_not():
    seen = {
        short_classes: {LABELS[n] for batch in batches for n in batch}
        for short_classes in ("drop", "repeat")
        for batches in [first_batches(examples_per_class=4, short_classes=short_classes)]
    }
    assert seen["drop"] == set(range(12)) - {0, 3, 6, 9}
    assert seen["repeat"] == set(range(12))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"classes_per_batch": 13},
            r"classes_per_batch=13 distinct classes, but there are only 12 to train on\. Lower classes_per",
        ),
        (
            {"classes_per_batch": 9, "examples_per_class": 4, "short_classes": "drop"},
            r"classes_per_batch=9 distinct classes, but there are only 8 with at least 4 images to train on",
        ),
        ({"classes_per_batch": 0}, "argument `classes_per_batch`. Expected an integer of at least 1"),
        ({"examples_per_class": 1.5}, "argument `examples_per_class`. Expected an integer of at least 1"),
        ({"seed": -1}, "argument `seed`. Expected an integer of at least 0"),
        ({"short_classes": "dropp"}, r'argument `short_classes`.* Did you mean "drop"\?'),
    ],
)
def test_what_cannot_be_promised_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        first_batches(**arguments)
