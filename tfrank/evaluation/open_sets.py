"""Open sets: how well images of known classes are classified, and those of unknown classes recognised."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.metric_names import HIGH, LOW
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.thresholds import CONFIDENCE, FEWEST_CLASSES
from tfrank.evaluation.votes import FAR, NEAREST, Votes, acceptance, held_out, of_nearest

TOO_FEW = (
    "An open set needs images of four classes, of which half are unknown, and two images of each known class."
)


class Parts(NamedTuple):
    """Numbers of the images of an open set: the gallery of the known classes, their queries, the unknown."""

    gallery: np.ndarray
    known: np.ndarray
    unknown: np.ndarray


def divided(labels: np.ndarray, *, seed: int = 0) -> Parts:
    """Draws half of the classes as unknown, and of each known class half of its images as gallery.

    Of an odd number of classes, or of images of a class, one more is known, or gallery.

    Args:
        labels: `[images]` integers.
        seed: seed of the draw.

    Raises:
        InputError: there are fewer than four classes, or no known class has two images.

    >>> divided(np.arange(12) // 3, seed=1)
    Parts(gallery=array([0, 1, 3, 4]), known=array([2, 5]), unknown=array([ 6,  7,  8,  9, 10, 11]))
    """
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels))
    known = np.isin(labels, classes[: -(-len(classes) // 2)])
    order = rng.permutation(np.flatnonzero(known))
    order = order[np.argsort(labels[order], kind="stable")]
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(first, sizes)
    gallery = place < np.repeat(-(-sizes // 2), sizes)
    if len(classes) < 4 or gallery.all():
        raise InputError(TOO_FEW)
    return Parts(np.sort(order[gallery]), np.sort(order[~gallery]), np.flatnonzero(~known))


def open_set(
    embeddings: np.ndarray, labels: np.ndarray, *, far: float = FAR, seed: int = 0
) -> dict[str, float]:
    """Measures classification by nearest images where half of the classes are unknown.

    Known and unknown classes, and the gallery, are drawn by `divided`. Each other image gets the label and
    the score of `votes` by its 10 nearest images of the gallery. With K known queries of scores p, of which R
    get the right label, and U unknown ones of scores u,

        accuracy = R / K
        AUROC    = 1/(K U) sum over all p and u of [p > u] + [p = u] / 2
        OSCR     = 1/(K U) sum over the right p and all u of [p > u] + [p = u] / 2

    OSCR is the area under the curve of correct classification rate against false positive rate of Dhamija et
    al. (arXiv:1811.04110). At the threshold t of `acceptance`, which the gallery gives,

        known   = 1/K #{right p >= t},    unknown = 1/U #{u < t}

    All have the interval of drawing classes: with a query's mean over the other side, m, the influence of a
    class is the sum of m - mean over its queries, and each side adds C / (C - 1) sum of squares / queries^2
    to the variance (Obuchowski, Biometrics 1997). Student's t has the degrees of freedom of the side with
    fewer classes; below five classes there is no interval. The threshold is taken as given.

    Args:
        embeddings: `[images, dim]` float32 of unit norm.
        labels: `[images]` integers.
        far: share of the images of unknown classes that the threshold shall accept at most.
        seed: seed of the draws.

    Returns:
        `open_set_<name>`, 0 to 1, of accuracy, auroc and oscr, and if there is a threshold of known and
        unknown; `..._low` and `..._high`, the ends of the 95 % intervals if there are any; and the numbers
        `open_set_known_queries` and `open_set_unknown_queries`.

    Raises:
        InputError: there are fewer than four classes, or no known class has two images.

    >>> rows = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    >>> found = open_set(rows, np.arange(8) // 2)
    >>> found["open_set_accuracy"], found["open_set_auroc"], found["open_set_oscr"]
    (1.0, 1.0, 1.0)
    """
    far = checks.number("far", far, above=0, below=1)
    _, labels = np.unique(labels, return_inverse=True)
    parts = divided(labels, seed=seed)
    gallery, known, unknown = (embeddings[rows] for rows in parts)
    answers = [classified(rows, gallery, labels[parts.gallery]) for rows in (known, unknown)]
    right = answers[0].label == labels[parts.known]
    scores = [answer.score for answer in answers]
    least = acceptance(held_out(gallery, labels[parts.gallery], seed=seed), far).high
    measured = {"accuracy": [right], "auroc": _wins(*scores), "oscr": _wins(*scores, right)}
    if math.isfinite(least):
        measured |= {"known": [right & (scores[0] >= least)], "unknown": [scores[1] < least]}
    found = {}
    for name, values in measured.items():
        rows = [parts.unknown] if name == "unknown" else [parts.known, parts.unknown]
        found |= _with_interval(f"open_set_{name}", [(v, labels[r]) for v, r in zip(values, rows)])
    counts = {"known": len(parts.known), "unknown": len(parts.unknown)}
    return found | {f"open_set_{side}_queries": count for side, count in counts.items()}


def classified(queries: np.ndarray, gallery: np.ndarray, labels: np.ndarray) -> Votes:
    """Returns which class of a gallery queries are of, by its nearest images; see `votes.votes`.

    Args:
        queries: `[queries, dim]` float32 of unit norm.
        gallery: `[gallery, dim]` likewise.
        labels: `[gallery]` integers from 0.
    """
    found = exact(queries, gallery, min(NEAREST, len(gallery)))
    return of_nearest(*found, labels)


def _wins(known, unknown, right=True):
    """Of each known query the share of the unknown ones that it is above; of each unknown one of those below.

    Only known queries that are `right` win.
    """
    right = np.broadcast_to(right, known.shape)

    def above(scores, others):
        others = np.sort(others)
        counts = [np.searchsorted(others, scores, side=side) for side in ("left", "right")]
        return sum(counts) / 2

    over = above(known, unknown) / len(unknown) * right
    under = (right.sum() - above(unknown, known[right])) / len(known)
    return [over, under]


def _with_interval(name, sides):
    """A mean and the ends of its interval, from the values and labels of one or two sides of equal means."""
    mean = float(np.mean(sides[0][0]))
    variance, fewest = 0.0, math.inf
    for values, labels in sides:
        _, place = np.unique(labels, return_inverse=True)
        influence = np.bincount(place, values - mean)
        classes = len(influence)
        fewest = min(fewest, classes)
        variance += classes / max(classes - 1, 1) * np.sum(influence**2) / len(values) ** 2
    if fewest < FEWEST_CLASSES:
        return {name: mean}
    half = stats.t.ppf((1 + CONFIDENCE) / 2, fewest - 1) * math.sqrt(variance)
    return {name: mean, name + LOW: max(mean - half, 0.0), name + HIGH: min(mean + half, 1.0)}


def check(labels: np.ndarray) -> None:
    """Raises InputError unless images of these labels can be divided."""
    divided(labels)


def note(found: Mapping[str, float]) -> str:
    """A note for the reader of the results of `open_set`: why something is left out; or \"\"."""
    if "open_set_known" in found:
        return ""
    return "Open set: the known classes are too few for a threshold, so that nothing is measured at one."
