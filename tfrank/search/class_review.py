"""Pairs of classes that look like one, and classes that look like two."""

from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from tfrank.evaluation.array_checks import unit_rows
from tfrank.evaluation.parallel import count_physical_cores

# Classes of fewer images are not judged; nor are parts of fewer, or of a smaller share of the class.
FEWEST, FEWEST_OF_PART, SHARE_OF_PART = 6, 4, 0.15
# Two classes look like one if their means are at most so many times as far apart, squared, as chance puts
# the means of two halves of one class.
MIXED = 1.5
# A class looks like two if each part is nearer to another class than to the other part, by this cosine.
APART = 0.2


class OneClass(NamedTuple):
    """Two classes whose images mix.

    Attributes:
        first, second: the classes.
        distance: squared distance of their means, divided by what chance makes it; 1 for halves of a class.
    """

    first: int
    second: int
    distance: float


class TwoClasses(NamedTuple):
    """A class that falls into two parts.

    Attributes:
        label: the class.
        parts: the numbers of the images of each part, the larger part first, the most typical image first.
        margin: cosine of a part and the class nearest to it, the smaller of both parts, minus that of the
            parts.
    """

    label: int
    parts: tuple[np.ndarray, np.ndarray]
    margin: float


def mixed_classes(embeddings: np.ndarray, labels: np.ndarray) -> list[OneClass]:
    """Returns the pairs of classes that look like one, those that mix most first.

    The means of two random samples of one class, of n and m images, are apart by the variance of an image
    times 1/n + 1/m, on average: the squared distance of two classes is divided by that.

    Args:
        embeddings: `[images, dim]`.
        labels: `[images]` integers; -1 for images without a label. Classes of fewer than 6 images are not
            judged.

    >>> rows = np.eye(3).repeat(12, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(36, 3))
    >>> labels = np.arange(3).repeat(12)
    >>> labels[::2] += 10 * (labels[::2] == 1)
    >>> [(pair.first, pair.second) for pair in mixed_classes(rows, labels)]
    [(1, 11)]
    """
    classes, means, variances, counts = _classes(embeddings, labels)
    found = []
    for one in range(len(classes) - 1):
        squared = np.sum((means[one + 1 :] - means[one]) ** 2, axis=1)
        chance = variances[one] / counts[one] + variances[one + 1 :] / counts[one + 1 :]
        # Classes of one picture have no variance.
        distances = squared / np.maximum(chance, 1e-9)
        for other in np.flatnonzero(distances <= MIXED):
            found.append(OneClass(int(classes[one]), int(classes[one + 1 + other]), float(distances[other])))
    return sorted(found, key=lambda pair: pair.distance)


def double_classes(embeddings: np.ndarray, labels: np.ndarray) -> list[TwoClasses]:
    """Returns the classes that look like two, those whose parts are farthest apart first.

    The parts are those of 2-means. Each class falls into two, but its parts are nearer to each other than to
    other classes. Cosines are those of means, after the mean of all images is subtracted.

    Args:
        embeddings: `[images, dim]`.
        labels: as for `mixed_classes`.

    >>> means = np.eye(4) + np.eye(4)[[1, 0, 3, 2]] / 2
    >>> rows = means.repeat(12, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(48, 4))
    >>> labels = np.array([0, 1, 2, 0]).repeat(12)
    >>> [(found.label, sorted(map(len, found.parts))) for found in double_classes(rows, labels)]
    [(0, [12, 12])]
    """
    rows = unit_rows(embeddings)[0]
    rows = unit_rows(rows - rows.mean(axis=0))[0]
    classes, means, *_ = _classes(rows, labels)
    means, found = unit_rows(means)[0], []
    count_physical_cores()
    for number, label in enumerate(classes if len(classes) > 1 else []):
        members = np.flatnonzero(labels == label)
        side = KMeans(2, n_init=4, random_state=0).fit(rows[members]).labels_
        parts = sorted((members[side == one] for one in (0, 1)), key=len, reverse=True)
        if len(parts[1]) < max(FEWEST_OF_PART, SHARE_OF_PART * len(members)):
            continue
        ends = unit_rows(np.stack([rows[part].mean(axis=0) for part in parts]))[0]
        nearest = (ends @ np.delete(means, number, axis=0).T).max(axis=1)
        margin = float(nearest.min() - ends[0] @ ends[1])
        if margin >= APART:
            first, second = (part[np.argsort(-rows[part] @ end)] for part, end in zip(parts, ends))
            found.append(TwoClasses(int(label), (first, second), margin))
    return sorted(found, key=lambda one: -one.margin)


def _classes(embeddings, labels):
    """Returns the classes that are judged, their means, the variance of an image around them, and counts."""
    rows, labels = unit_rows(embeddings)[0], np.asarray(labels)
    classes, counts = np.unique(labels[labels >= 0], return_counts=True)
    classes, counts = classes[counts >= FEWEST], counts[counts >= FEWEST]
    means = np.zeros([len(classes), rows.shape[1]], np.float32)
    variances = np.zeros(len(classes))
    for number, label in enumerate(classes):
        of_class = rows[labels == label]
        means[number] = of_class.mean(axis=0)
        variances[number] = np.sum((of_class - means[number]) ** 2) / (len(of_class) - 1)
    return classes, means, variances, counts
