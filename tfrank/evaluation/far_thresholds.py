"""Similarity thresholds of a false accept rate, which promise the same in an index of any size."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.exhaustive import ROUNDING
from tfrank.evaluation.thresholds import (
    CONFIDENCE,
    FEWEST_CLASSES,
    MAX_PAIRS,
    STEPS,
    TOO_FEW,
    UNSEEN,
    first_below,
)
from tfrank.evaluation.verification import pair_similarities, pairs_by_class


class FarThreshold(NamedTuple):
    """A similarity from which on pairs of images are accepted.

    Attributes:
        similarity: the threshold by what was seen, a cosine; infinite if the pairs are too few to measure
            the rate.
        low, high: its 95 % interval. From `high` on the rate can be promised for other classes too. If it is
            infinite, nothing can.
        far: false accept rate, which was asked for.
        tar: share of the pairs of one class (or of what else is to be accepted) accepted from `high` on.
        pairs: number of pairs of different classes (or of what else is to be refused) that were compared.
        classes: number of classes that it was learnt from.
    """

    similarity: float
    low: float
    high: float
    far: float
    tar: float
    pairs: int
    classes: int


def far_in_words(found: FarThreshold) -> str:
    """Says what a threshold of a false accept rate promises."""
    rate = f"at most {100 * found.far:g} % of the pairs of images of different classes"
    if math.isfinite(found.high):
        return (
            f"In an index of any size, results from similarity {found.high:.3f} on are called a match:"
            f" {rate} are as similar (95 % confidence, by {found.classes} classes). A query has at most"
            f" {1000 * found.far:g} wrong results in 1,000 images on average."
        )
    return f"No result is called a match: {found.classes} classes are too few to promise it of {rate}."


def far_thresholds(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    fars: Sequence[float] = (1e-2, 1e-3),
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> list[FarThreshold]:
    """Returns the smallest threshold that accepts at most a share of the pairs of different classes.

    With N such pairs of similarities n, and P pairs of one class of similarities p,

        FAR(t) = 1/N #{n >= t},    TAR(t) = 1/P #{p >= t}

    The threshold of a rate is the smallest of the n with FAR(t) <= rate. An index of M images has M FAR(t)
    wrong results for a query on average. Take classes that were not trained on.

    The interval is that of drawing classes, to which both images of a pair belong: if class c has a_c
    accepted of n_c pairs, the standard error is sqrt(C / (C - 1) sum of (a_c - FAR n_c)^2) / N; see `curve`.

    Args:
        embeddings: `[images, dim]` of unit norm.
        labels: `[images]` integers, with at least two classes and one pair of equal labels.
        fars: false accept rates, above 0, below 1.
        max_pairs: number of pairs of different classes, and of one class, that are drawn if there are more.
        seed: seed of the draw.

    Raises:
        InputError: there is one class only, or no two images of one class.

    >>> rows = np.array([[1, 0], [0.96, 0.28], [0, 1], [0.28, 0.96]])
    >>> (found,) = far_thresholds(rows, np.array([3, 3, 5, 5]), fars=[0.25])
    >>> round(found.similarity, 2), found.high, found.pairs
    (0.54, inf, 4)
    """
    fars = checks.sequence("fars", fars, checks.number, above=0, below=1)
    _, classes, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if len(counts) < 2 or counts.max() < 2:
        raise InputError(TOO_FEW)
    rng = np.random.default_rng(seed)
    rows = np.asarray(embeddings, np.float32)
    same, different = pairs_by_class(classes)
    positives = pair_similarities(rows, same, same.drawn(max_pairs, rng))
    numbers = different.drawn(max_pairs, rng)
    negatives = pair_similarities(rows, different, numbers)
    ends = [classes[images] for images in different.images(numbers)]
    return [far_threshold(positives, negatives, ends, len(counts), far) for far in fars]


def far_threshold(
    positives: np.ndarray, negatives: np.ndarray, ends: Sequence[np.ndarray], classes: int, far: float
) -> FarThreshold:
    """Returns the smallest threshold that accepts at most a share of some negatives; see `far_thresholds`.

    Args:
        positives: `[positives]` similarities of what is to be accepted.
        negatives: `[negatives]` similarities of what is not.
        ends: the two classes, from 0, that have part in each negative, `[negatives]` each.
        classes: number of classes that the negatives were drawn with.
        far: the share.
    """
    steps, *bounds = _false_accepts(negatives, ends, classes, far)
    similarity, low, high = (first_below(steps, bound, far) for bound in bounds)
    tar = float(np.mean(positives >= high - ROUNDING))
    return FarThreshold(similarity, low, high, far, tar, len(negatives), classes)


def _false_accepts(
    negatives: np.ndarray, ends: Sequence[np.ndarray], count: int, far: float
) -> tuple[np.ndarray, ...]:
    """Some similarities, ascending; the false accept rate from each on, and the ends of its interval.

    Args:
        negatives: `[pairs]` similarities of pairs of different classes.
        ends: the classes, from 0, of the first and of the second image, `[pairs]` each.
        count: number of classes.
        far: the rate.
    """
    order = np.argsort(-negatives)
    ordered, ends = negatives[order], [classes[order] for classes in ends]
    # Of one class there is no spread; its interval is all that there is.
    pairs, freedom = len(order), max(1, count - 1)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    # Single pairs where they are few, then steps of some percent; and the rate itself.
    places = np.append(np.geomspace(1, pairs, STEPS).astype(int), max(1, int(far * pairs + 1e-9)))
    steps = np.unique(ordered[places - 1])
    length = 1 + max(classes.max() for classes in ends)
    of_class = sum(np.bincount(classes, minlength=length) for classes in ends)
    rows = []
    for step in steps:
        accepted = np.searchsorted(-ordered, -(step - ROUNDING), side="right")
        parts = sum(np.bincount(classes[:accepted], minlength=length) for classes in ends)
        rate = accepted / pairs
        spread = math.sqrt(count / freedom * np.sum((parts - rate * of_class) ** 2)) / pairs
        high = (accepted + UNSEEN) / (pairs + UNSEEN) + quantile * spread
        few = count < FEWEST_CLASSES
        rows.append((rate, 0 if few else max(rate - quantile * spread, 0), 1 if few else min(high, 1)))
    return steps, *np.array(rows).T
