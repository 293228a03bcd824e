"""Similarity thresholds: from which similarity on two images are taken for a match."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.search.exhaustive import exact

SAMPLES = 1000
# Precision from which on a result is called a match, and from which on it may be one.
MATCH, PERHAPS = 0.95, 0.5


class Threshold(NamedTuple):
    """A similarity from which on results are accepted.

    Attributes:
        similarity: the threshold, a cosine; above 1 if no threshold reaches the precision.
        low, high: ends of its 95 % interval.
        precision: share of the accepted results that are of the query's class, which was asked for.
        recall: share of the right results that are accepted.
    """

    similarity: float
    low: float
    high: float
    precision: float
    recall: float


def thresholds(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    precisions: Sequence[float] = (MATCH, PERHAPS),
    seed: int = 0,
) -> list[Threshold]:
    """Returns the smallest threshold of each precision, for the nearest neighbour of each image.

    Each image in turn is the query, and its nearest neighbour among the others the result; it is right if it
    has the query's label. With similarity s_i and r_i = 1 for a right result,

        precision(t) = sum_i r_i [s_i >= t] / sum_i [s_i >= t]

    and the threshold is the smallest s_i with precision(t) >= precision for it and all larger ones that the
    results distinguish. Take classes that were not trained on. Precision depends on how many images of other
    classes there are: in a larger gallery than this one, a threshold lets more wrong results through.

    The interval is that of the percentiles 2.5 and 97.5 of 1,000 draws of as many classes with replacement,
    since images of one class resemble one another.

    Args:
        embeddings: `[images, dim]` of unit norm.
        labels: `[images]` integers, with at least two classes and one pair of equal labels.
        precisions: above 0, up to 1.
        seed: seed of the draws.

    Raises:
        InputError: there is one class only, or no two images of one class.

    >>> rows = np.array([[1, 0], [0.96, 0.28], [0, 1], [0.28, 0.96], [0.6, 0.8]])
    >>> found = thresholds(rows, np.array([3, 3, 5, 5, 7]), precisions=[1.0])
    >>> round(found[0].similarity, 2), found[0].recall
    (0.96, 1.0)
    """
    precisions = checks.sequence("precisions", precisions, checks.number, above=0, at_most=1)
    _, classes, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if len(counts) < 2 or counts.max() < 2:
        raise InputError("A threshold needs at least two classes, and one of them with two images.")
    found = exact(embeddings, embeddings, 1, np.arange(len(classes)))
    similarities, right = found.similarity[:, 0], classes[found.index[:, 0]] == classes
    order = np.argsort(-similarities, kind="stable")
    similarities, right, classes = similarities[order], right[order], classes[order]
    draws = np.random.default_rng(seed).multinomial(
        len(counts), np.full(len(counts), 1 / len(counts)), size=SAMPLES
    )
    everything = np.ones(len(right))
    results = []
    for precision in precisions:
        similarity = _smallest(similarities, right, everything, precision)
        drawn = [_smallest(similarities, right, draw[classes].astype(float), precision) for draw in draws]
        low, high = np.percentile(drawn, [2.5, 97.5])
        recall = float(np.mean(similarities[right] >= similarity)) if right.any() else 0.0
        results.append(Threshold(similarity, float(low), float(high), precision, recall))
    return results


def _smallest(similarities: np.ndarray, right: np.ndarray, weights: np.ndarray, precision: float) -> float:
    """Returns the smallest similarity at which the precision is reached; 1.01 if none is.

    Args:
        similarities: `[results]`, descending.
        right: `[results]` bool.
        weights: `[results]` how often each result counts.
        precision: the precision to reach.
    """
    accepted, good = np.cumsum(weights), np.cumsum(weights * right)
    # Equal similarities are accepted together.
    last = np.append(similarities[1:] < similarities[:-1], True) & (accepted > 0)
    reached = np.flatnonzero(last & (good >= precision * accepted - 1e-9))
    return float(similarities[reached[-1]]) if len(reached) else 1.01
