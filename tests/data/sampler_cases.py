"""What the tests of samplers share: samplers of random sizes, and the rule of turns as a plain walk."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tfrank.data.draws import permutation
from tfrank.data.samplers import AllClassesSampler, CategoryPairsSampler, ClassBalancedSampler, UniformSampler

NAMES = [-(2**62), -7, 0, 1, 2, 30, 400, 2**24 + 1, 2**62]
seeds = st.integers(0, 2**32)


def shuffled_labels(names, sizes):
    labels = np.repeat(np.array(names), sizes)
    np.random.default_rng(len(labels)).shuffle(labels)
    return labels


@st.composite
def balanced(draw_from):
    """A function that gives a fresh sampler, with the labels and the batch that it was made for."""
    sizes = draw_from(st.lists(st.integers(1, 9), min_size=1, max_size=9), label="images of each class")
    labels = shuffled_labels(draw_from(st.permutations(NAMES))[: len(sizes)], sizes)
    arguments = {
        "classes_per_batch": draw_from(st.integers(1, len(sizes)), label="classes_per_batch"),
        "examples_per_class": draw_from(st.integers(1, 6), label="examples_per_class"),
        "seed": draw_from(seeds, label="seed"),
    }
    return lambda: ClassBalancedSampler(labels, **arguments), labels, arguments


@st.composite
def paired(draw_from):
    """The same, of pairs of categories; the category of each label goes with them."""
    half = draw_from(st.integers(1, 3), label="classes of each category in a batch")
    counts = draw_from(
        st.lists(st.integers(half, 7), min_size=2, max_size=5), label="classes of each category"
    )
    halves = [-(-count // half) for count in counts]
    assume(2 * max(halves) <= sum(halves))
    names = draw_from(st.permutations(range(sum(counts))), label="labels")
    category_of = dict(
        zip(names, np.repeat(draw_from(st.permutations(NAMES))[: len(counts)], counts).tolist())
    )
    labels = shuffled_labels(names, [1 + 5 * name % 7 for name in names])
    categories = np.array([category_of[label] for label in labels])
    arguments = {
        "classes_per_batch": 2 * half,
        "examples_per_class": draw_from(st.integers(1, 6), label="examples_per_class"),
        "seed": draw_from(seeds, label="seed"),
    }
    return lambda: CategoryPairsSampler(labels, categories, **arguments), labels, arguments, category_of


@st.composite
def of_all_classes(draw_from):
    """The same, of all classes."""
    sizes = draw_from(st.lists(st.integers(1, 9), min_size=1, max_size=9), label="images of each class")
    labels = shuffled_labels(draw_from(st.permutations(NAMES))[: len(sizes)], sizes)
    least = sum(min(2, size) for size in sizes)
    arguments = {
        "batch_size": draw_from(st.integers(least, len(labels)), label="batch_size"),
        "seed": draw_from(seeds, label="seed"),
    }
    return lambda: AllClassesSampler(labels, **arguments), labels, arguments


@st.composite
def uniform(draw_from):
    """The same, of any images."""
    count = draw_from(st.integers(1, 40), label="images")
    arguments = {
        "batch_size": draw_from(st.integers(1, count), label="batch_size"),
        "seed": draw_from(seeds, label="seed"),
    }
    return lambda: UniformSampler(count, **arguments), np.zeros(count, int), arguments


any_sampler = st.one_of(balanced(), paired(), of_all_classes(), uniform())


def walk(seed, key, size, take, turns):
    """Turns of `take` things of `size`, by walking through the epochs with a list of what is left.

    From the contract: "Epoch e is a stateless permutation of the classes; a batch that straddles two epochs
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
