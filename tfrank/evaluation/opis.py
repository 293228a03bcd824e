"""Operating-point inconsistency (Zhang et al., ICLR 2024, arXiv 2307.04047): does one threshold fit all?"""

from typing import NamedTuple

import numpy as np

# The false accept rates between which the thresholds lie, and the number of thresholds.
FARS = (1e-2, 1e-1)
THRESHOLDS = 101


class ClassPairs(NamedTuple):
    """Similarities of pairs of images, and the classes of both.

    Attributes:
        similarities: `[pairs]`.
        first: `[pairs]` integers, the number of the class of each pair's first image, 0 and up.
        second: `[pairs]` that of its second image.
    """

    similarities: np.ndarray
    first: np.ndarray
    second: np.ndarray


def opis(same: ClassPairs, different: ClassPairs) -> float | None:
    """Variance between classes of the utility of a threshold, averaged over thresholds.

        U_c(d) = 2 sensitivity specificity / (sensitivity + specificity)
        OPIS = mean over thresholds d and classes c of (U_c(d) - mean over classes of U(d))^2

    Sensitivity is the share of the pairs within class c whose Euclidean distance is at most d; specificity is
    the share of the pairs of an image of class c and one of another whose distance is above d. The 101
    thresholds have equal steps, from the FAR 0.01 to the FAR 0.1 of all pairs of different classes. A class
    counts if it has pairs of both kinds.

    Args:
        same: pairs of images of one class.
        different: pairs of images of different classes.

    Returns:
        0 if each threshold is equally good for all classes, at most 0.25; None if there are fewer than two
        classes with pairs of both kinds, or fewer than 100 pairs of different classes.

    Reference: Zhang et al., Threshold-Consistent Margin Loss for Open-World Deep Metric Learning, ICLR 2024,
    arXiv 2307.04047.

    >>> one, two = np.repeat([0, 1], 50), np.repeat([1, 0], 50)
    >>> same = ClassPairs(np.repeat([0.9, 0.5], 50), one, one)
    >>> round(opis(same, ClassPairs(np.linspace(-1, 0.8, 100), one, two)), 4)
    0.2354
    """
    classes = 1 + max(part.max(initial=-1) for pairs in (same, different) for part in pairs[1:])
    total_same = np.bincount(same.first, minlength=classes)
    total_different = np.bincount(np.concatenate(different[1:]), minlength=classes)
    counts = (total_same > 0) & (total_different > 0)
    if len(different.similarities) < 1 / min(FARS) or np.count_nonzero(counts) < 2:
        return None
    nearest, farthest = (_distances(np.quantile(different.similarities, 1 - far)) for far in FARS)
    thresholds = np.linspace(nearest, farthest, THRESHOLDS)
    accepted_same = _accepted(same.similarities, same.first, thresholds, classes)
    accepted_different = sum(
        _accepted(different.similarities, of_class, thresholds, classes) for of_class in different[1:]
    )
    sensitivity = accepted_same[counts] / total_same[counts, None]
    specificity = 1 - accepted_different[counts] / total_different[counts, None]
    product, total = sensitivity * specificity, sensitivity + specificity
    utility = np.divide(2 * product, total, out=np.zeros_like(total), where=total > 0)
    return float(np.mean(np.var(utility, axis=0)))


def _distances(similarities):
    """Euclidean distances between unit vectors of these similarities."""
    return np.sqrt(np.maximum(2 - 2 * np.asarray(similarities, np.float64), 0))


def _accepted(similarities, of_class, thresholds, classes):
    """`[classes, thresholds]`: how many pairs of each class are at most so distant."""
    # The first threshold that accepts a pair; pairs that none accepts fall into a bin that is dropped.
    place = np.searchsorted(thresholds, _distances(similarities))
    bins = len(thresholds) + 1
    counts = np.bincount(of_class * bins + place, minlength=classes * bins).reshape(classes, bins)
    return np.cumsum(counts[:, :-1], axis=1)
