"""Changes labels (merged classes, label noise) and holds out classes: functions of labels and a seed."""

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError


def merge_classes(labels: np.ndarray, size: int, *, seed: int = 0) -> np.ndarray:
    """Merges random groups of `size` classes into new classes, which then have several centers.

    PNP's Tables 6 and 7 merge three ("at least three centers per class"). If fewer than `size` classes
    remain, they join the last new class.

    Args:
        labels: `[records]` int64.
        size: old classes per new class, at least 1, at most all. InputError otherwise.
        seed: seed of the draw, at least 0.

    Returns:
        `[records]` int64, the new classes numbered from 0.

    >>> merge_classes(np.array([5, 5, 6, 7, 8, 9]), 2)
    array([1, 1, 1, 1, 0, 0])
    """
    checks.integer("size", size, at_least=1)
    names, old = np.unique(labels, return_inverse=True)
    if size > len(names):
        raise InputError(
            f"Merging size={size} classes into one needs {size}, but there are only {len(names)}."
        )
    places = _generator(seed).permutation(len(names))
    return np.minimum(places // size, len(names) // size - 1)[old]


def add_label_noise(labels: np.ndarray, rate: float, *, seed: int = 0) -> np.ndarray:
    """Returns a copy of the labels in which round(rate x images) random images have a wrong label.

    A wrong label is that of another class; all other classes are equally likely.

    Args:
        labels: `[records]` int64, at least two classes (InputError otherwise). Not modified.
        rate: share of the images that get a wrong label, 0 to 1.
        seed: seed of the draws, at least 0.

    >>> add_label_noise(np.repeat([5, 6], 5), 0.2)
    array([5, 5, 5, 5, 6, 6, 5, 6, 6, 6])
    """
    count = round(checks.number("rate", rate, at_least=0, at_most=1) * len(labels))
    names, old = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError("Label noise needs at least two classes, but all images have the same class.")
    generator = _generator(seed)
    rows = generator.permutation(len(labels))[:count]
    steps = generator.integers(1, len(names), size=count)
    noisy = labels.copy()
    noisy[rows] = names[(old[rows] + steps) % len(names)]
    return noisy


def hold_out(labels: np.ndarray, count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Splits records by class: `count` random classes for validation, the others for training.

    Args:
        labels: `[records]` int64.
        count: classes to hold out, at least 0, fewer than all. InputError otherwise.
        seed: seed of the draw, at least 0.

    Returns:
        The record numbers of the training part and of the validation part, each in ascending order.

    >>> hold_out(np.array([5, 5, 6, 7, 8, 9]), 2)
    (array([0, 1, 2, 4]), array([3, 5]))
    """
    checks.integer("count", count, at_least=0)
    classes = _generator(seed).permutation(np.unique(labels))
    if count >= len(classes):
        raise InputError(
            f"Holding out {count} classes for validation leaves none of the {len(classes)} classes to train"
            " on. Lower validation_classes."
        )
    held_out = np.isin(labels, classes[:count])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _generator(seed):
    return np.random.default_rng(checks.integer("seed", seed, at_least=0))
