"""The promise of a batch, held over epochs for any sizes, of each sampler; and how long a batch takes."""

import collections
import fractions
import itertools
import time
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sampler_cases import any_sampler, balanced, of_all_classes, paired, uniform, walk
from tfrank.common.checks import InputError
from tfrank.data.draws import CLASSES, CLASSES_OF_CATEGORY, epoch_order, permutation
from tfrank.data.samplers import (
    AllClassesSampler,
    CategoryPairsSampler,
    ClassBalancedSampler,
    UniformSampler,
    class_quotas,
)

quick = settings(deadline=None, max_examples=40, derandomize=True)


def batches_by_class(sampler, labels, examples_per_class, steps):
    """Each batch as a list of (class, its images), in the order of the batch."""
    for step in steps:
        rows = sampler.batch(step).reshape(-1, examples_per_class)
        for row in rows:
            assert len(set(labels[row])) == 1
        yield [(labels[row[0]], row.tolist()) for row in rows]


def spread(visits, things):
    counts = [visits[thing] for thing in things]
    return max(counts) - min(counts)


# What holds of all.


@quick
@given(any_sampler)
def test_a_batch_holds_as_many_records_as_it_says_and_the_images_of_a_class_are_visited_equally(case):
    build, labels, *_ = case
    sampler, visits = build(), collections.Counter()
    for step in range(30):
        batch = sampler.batch(step)
        assert batch.shape == (sampler.batch_size,) and batch.dtype == np.int64
        visits.update(batch.tolist())
        for label in set(labels):
            assert spread(visits, np.flatnonzero(labels == label)) <= 1


@quick
@given(any_sampler, st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_a_batch_is_the_same_alone_and_in_sequence(case, steps):
    build, *_ = case
    sampler = build()
    sequence = [sampler.batch(step) for step in range(61)]
    for step in steps:
        permutation.cache_clear(), epoch_order.cache_clear()
        np.testing.assert_array_equal(build().batch(step), sequence[step])


LABELS = np.repeat(np.arange(12), [3, 4, 5] * 4)
BALANCED = {"classes_per_batch": 4, "examples_per_class": 2}
MAKE = {
    "balanced": lambda **some: ClassBalancedSampler(LABELS, **{**BALANCED, **some}),
    "pairs": lambda **some: CategoryPairsSampler(LABELS, LABELS // 3, **{**BALANCED, **some}),
    "all": lambda **some: AllClassesSampler(LABELS, **{"batch_size": 30, **some}),
    "uniform": lambda **some: UniformSampler(len(LABELS), **{"batch_size": 10, **some}),
}


def first_batches(name, **arguments):
    sampler = MAKE[name](**arguments)
    return [sampler.batch(step).tolist() for step in range(6)]


@pytest.mark.parametrize("name", MAKE)
def test_seeds_differ_and_the_same_seed_does_not(name):
    runs = [first_batches(name, seed=seed) for seed in range(4)]
    assert all(one != other for one, other in itertools.combinations(runs, 2))
    assert first_batches(name, seed=2) == runs[2]


# Class-balanced.


@quick
@given(balanced())
def test_a_balanced_batch_holds_exactly_the_classes_and_images_promised(case):
    build, labels, arguments = case
    sizes = collections.Counter(labels)
    for batch in batches_by_class(build(), labels, arguments["examples_per_class"], range(30)):
        assert len(batch) == len({label for label, _ in batch}) == arguments["classes_per_batch"]
        for label, images in batch:
            assert len(set(images)) == len(images) or sizes[label] < len(images)


@quick
@given(balanced())
def test_visits_of_two_classes_never_differ_by_more_than_one_and_each_epoch_has_all(case):
    build, labels, arguments = case
    names, places = set(labels), []
    batches = batches_by_class(build(), labels, arguments["examples_per_class"], range(30))
    for batch in batches:
        places += [label for label, _ in batch]
        assert spread(collections.Counter(places), names) <= 1
    for epoch in range(len(places) // len(names)):
        assert set(places[epoch * len(names) : (epoch + 1) * len(names)]) == names


@quick
@given(balanced())
def test_classes_and_images_are_drawn_by_that_rule(case):
    build, labels, arguments = case
    names, take, steps = np.unique(labels), arguments["examples_per_class"], 20
    seed, members = arguments["seed"], [np.flatnonzero(labels == name) for name in names]
    # In epoch e a class is visited for the e-th time. A class smaller than a visit has no such rule.
    visits = {
        c: [images for images, _ in walk(seed, c, len(members[c]), take, steps)]
        for c in range(len(names))
        if len(members[c]) >= take
    }
    classes = walk(seed, CLASSES, len(names), arguments["classes_per_batch"], steps)
    for batch, (turn, epochs) in zip(batches_by_class(build(), labels, take, range(steps)), classes):
        assert [label for label, _ in batch] == names[turn].tolist()
        for (_, images), c, epoch in zip(batch, turn, epochs):
            assert c not in visits or members[c][visits[c][epoch]].tolist() == images


def test_the_random_stream_is_the_one_that_published_numbers_were_trained_on():
    first = MAKE["balanced"](seed=7)
    assert [first.batch(step).tolist() for step in (0, 1, 100, 12345)] == [
        [20, 19, 1, 2, 8, 10, 42, 41],
        [47, 46, 18, 17, 37, 38, 28, 27],
        [15, 17, 3, 6, 38, 37, 41, 39],
        [18, 16, 23, 20, 26, 25, 43, 45],
    ]
    second = MAKE["balanced"](classes_per_batch=5, examples_per_class=4, seed=2**32)
    assert second.batch(1000).tolist() == [
        *(11, 7, 8, 10, 37, 37, 36, 38, 3, 5, 4, 6, 22, 21, 19, 23, 41, 42, 39, 40)
    ]


@pytest.mark.parametrize(
    "classes, examples, short_classes, checksum",
    [
        (5, 2, "repeat", 2110953968),
        (8, 4, "drop", 3301785878),
        (12, 4, "repeat", 171930548),
        (7, 3, "repeat", 1310313341),
        (1, 1, "repeat", 335417839),
    ],
)
def test_and_so_are_two_hundred_batches_of_any_kind(classes, examples, short_classes, checksum):
    sampler = ClassBalancedSampler(
        LABELS, classes_per_batch=classes, examples_per_class=examples, short_classes=short_classes, seed=3
    )
    numbers = np.concatenate([sampler.batch(step) for step in range(200)])
    assert zlib.crc32(numbers.astype("<i8").tobytes()) == checksum


@pytest.mark.parametrize("name", ["balanced", "pairs"])
def test_drop_leaves_small_classes_out_and_repeat_does_not(name):
    seen = {
        short_classes: {LABELS[n] for batch in batches for n in batch}
        for short_classes in ("drop", "repeat")
        for batches in [first_batches(name, examples_per_class=4, short_classes=short_classes)]
    }
    assert seen["drop"] == set(range(12)) - {0, 3, 6, 9}
    assert seen["repeat"] == set(range(12))


# Pairs of categories.


@quick
@given(paired())
def test_a_batch_of_pairs_holds_two_categories_and_half_of_the_classes_from_each(case):
    build, labels, arguments, category_of = case
    sizes = collections.Counter(labels)
    for batch in batches_by_class(build(), labels, arguments["examples_per_class"], range(30)):
        assert len(batch) == len({label for label, _ in batch}) == arguments["classes_per_batch"]
        half = arguments["classes_per_batch"] // 2
        assert set(collections.Counter(category_of[label] for label, _ in batch).values()) == {half}
        for label, images in batch:
            assert len(set(images)) == len(images) or sizes[label] < len(images)


@quick
@given(paired())
def test_classes_of_a_category_come_in_turn_by_the_rule_and_each_visit_goes_on_in_its_images(case):
    build, labels, arguments, category_of = case
    names, categories = sorted(category_of), sorted(set(category_of.values()))
    take = arguments["examples_per_class"]
    half, seed = arguments["classes_per_batch"] // 2, arguments["seed"]

    def turns_of(key, things, take):
        return ([things[place] for place in turn] for turn, _ in walk(seed, key, len(things), take, 200))

    classes_of = {
        category: [name for name in names if category_of[name] == category] for category in categories
    }
    turns = {c: turns_of(CLASSES_OF_CATEGORY - k, classes_of[c], half) for k, c in enumerate(categories)}
    images_of = {name: np.flatnonzero(labels == name).tolist() for name in names}
    visits = {
        name: turns_of(c, images_of[name], take)
        for c, name in enumerate(names)
        if len(images_of[name]) >= take
    }
    for batch in batches_by_class(build(), labels, take, range(40)):
        for rows in (batch[:half], batch[half:]):
            drawn = [label for label, _ in rows]
            assert drawn == next(turns[category_of[drawn[0]]])
            for label, images in rows:
                assert label not in visits or images == next(visits[label])


@quick
@given(paired())
def test_in_each_epoch_a_category_is_in_as_many_batches_as_its_classes_need(case):
    build, labels, arguments, category_of = case
    half = arguments["classes_per_batch"] // 2
    needed = {
        category: -(-count // half) for category, count in collections.Counter(category_of.values()).items()
    }
    twice = 2 if sum(needed.values()) % 2 else 1
    batches = batches_by_class(build(), labels, arguments["examples_per_class"], itertools.count())
    for _ in range(3):
        seen = collections.Counter()
        for batch in itertools.islice(batches, twice * sum(needed.values()) // 2):
            seen.update({category_of[label] for label, _ in batch})
        assert seen == {category: twice * count for category, count in needed.items()}


# All classes.


def quotas_by_hand(sizes, batch_size):
    """Shares in fractions: the smallest classes have their least number, one more at a time until all fit."""
    order = sorted(range(len(sizes)), key=lambda c: sizes[c])
    least = [min(2, size) for size in sizes]
    for fixed in range(len(sizes) + 1):
        rest = order[fixed:]
        left = batch_size - sum(least[c] for c in order[:fixed])
        shares = {c: fractions.Fraction(left * sizes[c], sum(sizes[c] for c in rest)) for c in rest}
        if all(share >= least[c] for c, share in shares.items()):
            break
    quotas = [int(shares.get(c, least[c])) for c in range(len(sizes))]
    for c in sorted(rest, key=lambda c: (-(shares[c] % 1), c))[: batch_size - sum(quotas)]:
        quotas[c] += 1
    return quotas


@quick
@given(st.data())
def test_quotas_are_in_proportion_to_the_sizes_by_largest_remainders_but_at_least_two(data):
    sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=8))
    batch_size = data.draw(st.integers(sum(min(2, size) for size in sizes), sum(sizes)))
    quotas = class_quotas(np.array(sizes), batch_size).tolist()
    assert quotas == quotas_by_hand(sizes, batch_size)
    assert sum(quotas) == batch_size
    assert all(min(2, size) <= quota <= size for quota, size in zip(quotas, sizes))


@quick
@given(of_all_classes())
def test_a_batch_of_all_classes_holds_each_by_its_quota_and_no_image_twice(case):
    build, labels, arguments = case
    sampler, seed = build(), arguments["seed"]
    names = np.unique(labels).tolist()
    members = [np.flatnonzero(labels == name) for name in names]
    quotas = quotas_by_hand([len(images) for images in members], arguments["batch_size"])
    turns = [walk(seed, c, len(members[c]), quotas[c], 30) for c in range(len(names))]
    for step in range(30):
        batch = sampler.batch(step).tolist()
        assert batch == [image for images, turn in zip(members, turns) for image in images[next(turn)[0]]]
        assert len(set(batch)) == len(batch)
        assert collections.Counter(labels[batch].tolist()) == dict(zip(names, quotas))


# Uniform.


@quick
@given(uniform())
def test_a_uniform_batch_holds_the_next_images_of_a_shuffle_and_none_twice(case):
    build, labels, arguments = case
    sampler = build()
    for step, (images, _) in enumerate(walk(arguments["seed"], 0, len(labels), arguments["batch_size"], 30)):
        assert sampler.batch(step).tolist() == images
        assert len(set(images)) == len(images)


# Scale.


@pytest.mark.parametrize("kind", [ClassBalancedSampler, CategoryPairsSampler])
def test_a_batch_from_a_hundred_thousand_classes_takes_under_one_and_a_half_times_its_shuffles(kind):
    """In the first epoch of the images, and in a later one.

    The shuffles are NumPy's own, one for each of the 96 classes. They and the batch are timed in turn, by the
    clock of the thread, so that a core which is slow for a while is slow for both.
    """
    labels = np.repeat(np.arange(100_000), 33)
    coarse = [labels % 12] if kind is CategoryPairsSampler else []
    begin = time.thread_time()
    sampler = kind(labels, *coarse, classes_per_batch=96, examples_per_class=4)
    assert time.thread_time() - begin < 3

    def shuffles(step):
        for c in range(96):
            np.random.Generator(np.random.Philox([step, c])).permutation(33)

    for first in (1, 50_000):
        ratios = []
        for step in range(first, first + 100):
            times = [time.thread_time()]
            for work in (shuffles, sampler.batch):
                work(step)
                times.append(time.thread_time())
            ratios.append((times[2] - times[1]) / (times[1] - times[0]))
        assert np.median(ratios) < 1.5


# What cannot be promised.


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        (
            "balanced",
            {"classes_per_batch": 13},
            r"classes_per_batch=13 distinct classes, but there are only 12 to train on\. Lower classes_per",
        ),
        (
            "balanced",
            {"classes_per_batch": 9, "examples_per_class": 4, "short_classes": "drop"},
            r"classes_per_batch=9 distinct classes, but there are only 8 with at least 4 images to train on",
        ),
        ("balanced", {"classes_per_batch": 0}, "`classes_per_batch`. Expected an integer of at least 1"),
        ("balanced", {"examples_per_class": 1.5}, "`examples_per_class`. Expected an integer of at least 1"),
        ("balanced", {"seed": -1}, "argument `seed`. Expected an integer of at least 0"),
        ("balanced", {"short_classes": "dropp"}, r'argument `short_classes`.* Did you mean "drop"\?'),
        ("pairs", {"classes_per_batch": 5}, "`classes_per_batch`. Expected an even number"),
        ("pairs", {"examples_per_class": 0}, "`examples_per_class`. Expected an integer of at least 1"),
        ("pairs", {"seed": -1}, "argument `seed`. Expected an integer of at least 0"),
        ("pairs", {"short_classes": "dropp"}, r'argument `short_classes`.* Did you mean "drop"\?'),
        (
            "pairs",
            {"classes_per_batch": 8},
            r"4 classes of one category \(classes_per_batch=8\), but category 0 has only 3\. Lower",
        ),
        (
            "pairs",
            {"examples_per_class": 5, "short_classes": "drop"},
            r"Half a batch needs 2 classes .* category 0 has only 1 with at least 5 images\. Lower",
        ),
        ("all", {"batch_size": 23}, "all 12 classes needs at least 24 images, .* batch_size=23"),
        ("all", {"batch_size": 49}, "batch_size=49 distinct images, but there are only 48"),
        ("all", {"batch_size": 1.5}, "argument `batch_size`. Expected an integer of at least 1"),
        ("all", {"seed": -1}, "argument `seed`. Expected an integer of at least 0"),
        ("uniform", {"batch_size": 49}, "batch_size=49 distinct images, but there are only 48"),
        ("uniform", {"seed": -1}, "argument `seed`. Expected an integer of at least 0"),
    ],
)
def test_what_cannot_be_promised_is_refused(name, arguments, message):
    with pytest.raises(InputError, match=message):
        first_batches(name, **arguments)


@pytest.mark.parametrize(
    "categories, message",
    [
        (np.where(LABELS == 3, -1, LABELS // 3), "3 of 48 records have no category"),
        (
            np.where(np.arange(48) == 20, 7, LABELS // 3),
            "Class 5 has the categories 1 and 7, but a class has one",
        ),
        (
            LABELS // 8,
            r"Category 0 has 8 of 12 classes and would be in 67% of all half batches, .* Choose an",
        ),
        (LABELS * 0, "Category 0 has 12 of 12 classes and would be in 100% of all half batches"),
    ],
)
def test_categories_that_cannot_be_paired_are_refused(categories, message):
    with pytest.raises(InputError, match=message):
        CategoryPairsSampler(LABELS, categories, **BALANCED)


def test_no_records_are_refused():
    with pytest.raises(InputError, match="There are no records to sample from"):
        ClassBalancedSampler(np.array([], np.int64), **BALANCED)
