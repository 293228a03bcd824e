"""Four samplers, which choose the images of batch t. Each is a pure function of (seed, t)."""

import copy
from typing import Protocol

import numpy as np

from tfrank.common import checks
from tfrank.common.categories import categories_of_classes
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.draws import CLASSES, CLASSES_OF_CATEGORY, category_pairs, draw

SHORT_CLASSES = ("repeat", "drop")


class Sampler(Protocol):
    """The interface that a pipeline needs."""

    seed: int
    batch_size: int

    def batch(self, step: int) -> np.ndarray:
        """Returns the `[batch_size]` int64 record numbers of batch `step`, a function of seed and step."""


class ClassBalancedSampler:
    """Draws `classes_per_batch` distinct classes and `examples_per_class` distinct images of each.

    Each epoch visits all classes in a random order. Each visit to a class takes the next images in a random
    order of its images. At any t, visit counts of two classes differ by at most one; so do those of two
    images of a class.

    Args:
        labels: `[records]` int64, the class of each record.
        classes_per_batch: at least 1, at most the number of classes.
        examples_per_class: at least 1.
        short_classes: what to do with classes that have fewer images: "repeat" their images within
            a batch, or "drop" the classes.
        seed: seed of all draws, at least 0.

    >>> sampler = ClassBalancedSampler(np.repeat(np.arange(5), 3), classes_per_batch=2, examples_per_class=2)
    >>> sampler.batch(7).shape
    (4,)
    """

    def __init__(
        self,
        labels: np.ndarray,
        *,
        classes_per_batch: int,
        examples_per_class: int,
        short_classes: str = "repeat",
        seed: int = 0,
    ):
        self.classes_per_batch = checks.integer("classes_per_batch", classes_per_batch, at_least=1)
        self.examples_per_class = checks.integer("examples_per_class", examples_per_class, at_least=1)
        self.seed = checks.integer("seed", seed, at_least=0)
        self.batch_size = self.classes_per_batch * self.examples_per_class
        checks.one_of("short_classes", short_classes, SHORT_CLASSES)
        least = examples_per_class if short_classes == "drop" else 1
        self._members = _Members(labels).of_size(least)
        if len(self._members) < classes_per_batch:
            raise InputError(
                f"A batch needs classes_per_batch={classes_per_batch} distinct classes, but there are only"
                f" {len(self._members)}{_of_enough(least)} to train on. Lower classes_per_batch."
            )

    def batch(self, step: int) -> np.ndarray:
        """Returns the `[batch_size]` record numbers of batch `step`; images of a class are adjacent."""
        classes, visits = draw(self.seed, CLASSES, step, len(self._members), self.classes_per_batch)
        return _draw_images(self.seed, self._members, classes, visits, self.examples_per_class)


class CategoryPairsSampler:
    """Draws two categories and half of the classes from each, so that negatives are hard.

    FastAP (Cakir et al., CVPR 2019) and Smooth-AP sample Stanford Online Products in this way. In each epoch
    a category fills as many half batches as its classes need. If the total number of half batches is odd,
    every category gets twice as many. Half batches are paired at random. At any t, visit counts of two
    classes of a category differ by at most one; so do those of two images of a class.

    Args:
        labels, categories: `[records]` int64, the class of each record and the coarser class of that class.
        classes_per_batch: an even number; half of it is at most the number of classes of each category.
        examples_per_class, short_classes, seed: see `ClassBalancedSampler`.

    >>> labels = np.repeat(np.arange(6), 3)
    >>> sampler = CategoryPairsSampler(labels, labels // 2, classes_per_batch=4, examples_per_class=2)
    >>> len(set(labels[sampler.batch(7)])), len(set(labels[sampler.batch(7)] // 2))
    (4, 2)
    """

    def __init__(
        self,
        labels: np.ndarray,
        categories: np.ndarray,
        *,
        classes_per_batch: int,
        examples_per_class: int,
        short_classes: str = "repeat",
        seed: int = 0,
    ):
        self._half = checks.integer("classes_per_batch", classes_per_batch, at_least=1) // 2
        self._examples_per_class = checks.integer("examples_per_class", examples_per_class, at_least=1)
        self.seed = checks.integer("seed", seed, at_least=0)
        self.batch_size = classes_per_batch * examples_per_class
        checks.one_of("short_classes", short_classes, SHORT_CLASSES)
        if classes_per_batch % 2:
            raise checks.invalid(
                "classes_per_batch", "an even number, half for each category", classes_per_batch
            )
        least = examples_per_class if short_classes == "drop" else 1
        members = _Members(labels)
        names, category = np.unique(_category_of_classes(labels, categories), return_inverse=True)
        self._members, category = members.of_size(least), category[members.sizes >= least]
        counts = np.bincount(category, minlength=len(names))
        for name, count in zip(names, counts):
            if count < self._half:
                raise InputError(
                    f"Half a batch needs {self._half} classes of one category (classes_per_batch="
                    f"{classes_per_batch}), but category {name} has only {count}{_of_enough(least)}."
                    f" Lower classes_per_batch, or leave the records of that category out."
                )
        self._classes = _Members(category)
        self._halves = _half_batches(names, counts, self._half)

    def batch(self, step: int) -> np.ndarray:
        """Returns the `[batch_size]` record numbers of batch `step`, grouped by category and by class."""
        epoch, place = divmod(step, sum(self._halves) // 2)
        pairs, turns = category_pairs(self.seed, epoch, self._halves)
        classes, visits = [], []
        for k, before in zip(pairs[place].tolist(), turns[place].tolist()):
            turn = epoch * self._halves[k] + before
            key = CLASSES_OF_CATEGORY - k
            chosen, rounds = draw(self.seed, key, turn, len(self._classes[k]), self._half)
            classes.extend(self._classes[k][chosen])
            visits.extend(rounds)
        return _draw_images(self.seed, self._members, classes, visits, self._examples_per_class)


class AllClassesSampler:
    """Draws images of every class; `class_quotas` says how many of each, the same number in every batch.

    mAP_Q (Revaud et al., ICCV 2019) samples in this way. No image occurs twice in a batch. At any t, visit
    counts of two images of a class differ by at most one.

    Args:
        labels: `[records]` int64, the class of each record.
        batch_size: at least two images of each class (one of a class of one image), at most all images.
        seed: seed of all draws, at least 0.

    >>> labels = np.repeat(np.arange(3), [2, 4, 6])
    >>> sampler = AllClassesSampler(labels, batch_size=8)
    >>> labels[sampler.batch(7)]
    array([0, 0, 1, 1, 2, 2, 2, 2])
    """

    def __init__(self, labels: np.ndarray, *, batch_size: int, seed: int = 0):
        self.batch_size = _batch_size_of(len(labels), batch_size)
        self.seed = checks.integer("seed", seed, at_least=0)
        self._members = _Members(labels)
        self._quotas = class_quotas(self._members.sizes, batch_size).tolist()

    def batch(self, step: int) -> np.ndarray:
        """Returns the `[batch_size]` record numbers of batch `step`; images of a class are adjacent."""
        numbers = []
        for c, (images, quota) in enumerate(zip(self._members, self._quotas)):
            chosen, _ = draw(self.seed, c, step, len(images), quota)
            numbers.append(images[chosen])
        return np.concatenate(numbers)


class UniformSampler:
    """Draws images whatever their classes. At any t, visit counts of two images differ by at most one.

    All records are shuffled at the start of an epoch, and the orders of two epochs are kept. With 3.3 million
    records that takes 0.1 s and 0.1 GB.

    Args:
        count: number of records.
        batch_size: at least 1, at most `count`.
        seed: seed of all draws, at least 0.

    >>> sorted(np.concatenate([UniformSampler(6, batch_size=2).batch(step) for step in range(3)]).tolist())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, count: int, *, batch_size: int, seed: int = 0):
        self._count = checks.integer("count", count, at_least=1)
        self.batch_size = _batch_size_of(count, batch_size)
        self.seed = checks.integer("seed", seed, at_least=0)

    def batch(self, step: int) -> np.ndarray:
        """Returns the `[batch_size]` record numbers of batch `step`."""
        # Treat all records as the images of one class, number 0.
        return draw(self.seed, 0, step, self._count, self.batch_size)[0]


def class_quotas(sizes: np.ndarray, batch_size: int) -> np.ndarray:
    """Computes how many images of each class a batch of all classes has: in proportion to the class sizes.

    Each class gets at least two images; a class of one image gets one. Shares are rounded down. The images
    that are left go to the largest remainders; among equal remainders, to the first class.

    Args:
        sizes: `[classes]` number of images, at least 1 each.
        batch_size: the sum of the quotas, at most the sum of the sizes. InputError if it is too small for
            two images of each class (one of a class of one image).

    Returns:
        `[classes]` int64, each at most the class size.

    >>> class_quotas(np.array([1, 2, 10, 30]), 12)
    array([1, 2, 2, 7])
    """
    quotas = np.minimum(2, sizes)
    if batch_size < quotas.sum():
        raise InputError(
            f"A batch of all {len(sizes)} classes needs at least {quotas.sum()} images, two of each class"
            f" (one of a class of one), but batch_size={batch_size}. Raise the batch size, or sample classes."
        )
    free = sizes > 0
    while free.any():
        left, images = batch_size - quotas[~free].sum(), sizes[free].sum()
        # A class whose share is below its minimum keeps the minimum, which leaves fewer for the others.
        short = free & (left * sizes < quotas * images)
        if not short.any():
            shares = left * sizes[free]
            quotas[free] = shares // images
            rest = batch_size - quotas.sum()
            largest = np.argsort(-(shares % images), kind="stable")[:rest]
            quotas[np.flatnonzero(free)[largest]] += 1
            break
        free &= ~short
    return quotas


class _Members:
    """The record numbers of each class; classes are in the order of their labels.

    All are in one array, since arrays of a few numbers take more memory than these. 100 million records of
    5 million classes take 0.5 GB.
    """

    def __init__(self, labels: np.ndarray):
        if not len(labels):
            raise InputError("There are no records to sample from.")
        by_class = np.argsort(labels, kind="stable")
        ordered = labels[by_class]
        first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self._start, self._end = first, np.append(first[1:], len(labels))
        self._all = by_class.astype(np.uint32 if len(labels) <= 2**32 else np.int64)

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, c: int) -> np.ndarray:
        if not 0 <= c < len(self):
            raise IndexError(c)  # So that iteration ends.
        return self._all[self._start[c] : self._end[c]].astype(np.int64)

    @property
    def sizes(self) -> np.ndarray:
        """The number of records of each class."""
        return self._end - self._start

    def of_size(self, least: int) -> "_Members":
        """Only the classes with at least so many records."""
        some = copy.copy(self)
        enough = self.sizes >= least
        some._start, some._end = self._start[enough], self._end[enough]
        return some


def _draw_images(seed, members, classes, visits, take):
    """Returns record numbers: for each class, the `take` images of that visit."""
    numbers = []
    for c, visit in zip(classes, visits):
        images = members[c]
        chosen, _ = draw(seed, int(c), int(visit), len(images), take)
        numbers.append(images[chosen])
    return np.concatenate(numbers)


def _batch_size_of(count, batch_size):
    if checks.integer("batch_size", batch_size, at_least=1) > count:
        raise InputError(
            f"A batch needs batch_size={batch_size} distinct images, but there are only {count}."
            " Lower the batch size."
        )
    return int(batch_size)


def _of_enough(least):
    return f" with at least {least} images" if least > 1 else ""


def _category_of_classes(labels, categories):
    """Returns `[classes]`, the category of each class; raises InputError if a class has none or two."""
    missing = int((categories == UNKNOWN).sum())
    if missing:
        raise InputError(
            f"{missing:,} of {len(categories):,} records have no category. Pairs of categories need one for"
            " every record. Prepare the records with categories, or choose another sampler."
        )
    return categories_of_classes(labels, categories[:, None])[1][:, 0]


def _half_batches(names, counts, half):
    """Returns the number of half batches per category in an epoch; raises InputError if they cannot pair."""
    halves = -(-counts // half)
    largest = halves.argmax()
    if 2 * halves[largest] > halves.sum():
        raise InputError(
            f"Category {names[largest]} has {counts[largest]:,} of {counts.sum():,} classes and would be in"
            f" {halves[largest] / halves.sum():.0%} of all half batches, but only half of them can be paired"
            " with other categories. Choose another sampler."
        )
    if halves.sum() % 2:
        halves = 2 * halves
    return tuple(halves.tolist())
