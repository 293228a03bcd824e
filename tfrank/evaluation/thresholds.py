"""Similarity thresholds: from which similarity on results are a match, in an index of how many images."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.exhaustive import ROUNDING, exact

# Precision from which on a result is called a match, and from which on it may be one.
MATCH, PERHAPS = 0.95, 0.5
# The interval has this confidence, and needs so many classes.
CONFIDENCE, FEWEST_CLASSES = 0.95, 5
# Wrong results that are added to those seen, since none of few is no proof. With so many, intervals hold the
# threshold of the population in 93 to 100 % of simulations, also where few results are accepted.
UNSEEN = 4
# The largest number of images that are searched for, of results of each, and of similarities that are tried.
QUERIES, RESULTS, STEPS = 2000, 100, 200
# The greatest number of pairs of images.
MAX_PAIRS = 1_000_000
TOO_FEW = "A threshold needs at least two classes, and one of them with two images."


class Curve(NamedTuple):
    """How many results are wrong from a similarity on, among some images.

    Attributes:
        similarity: `[steps]` ascending.
        wrong: `[steps]` share of the results that are wrong from each similarity on: the mean over queries
            that have any.
        low, high: `[steps]` its 95 % interval.
        recall: `[steps]` share of the queries with a right nearest image in which that image is accepted.
        images: number of images that were searched.
        classes: number of classes of the queries.
    """

    similarity: np.ndarray
    wrong: np.ndarray
    low: np.ndarray
    high: np.ndarray
    recall: np.ndarray
    images: int
    classes: int


class Threshold(NamedTuple):
    """A similarity from which on results are accepted.

    Attributes:
        similarity: the threshold by what was seen, a cosine; infinite if there is none.
        low, high: its 95 % interval. From `high` on the precision can be promised for other classes too. If
            it is infinite, nothing can.
        precision: share of the accepted results that are of the query's class, which was asked for.
        recall: share of the queries with a right nearest image in which that image is accepted from `high`
            on.
        images: number of images of the index that it holds for.
        classes: number of classes that it was learnt from.
    """

    similarity: float
    low: float
    high: float
    precision: float
    recall: float
    images: int
    classes: int


def curve(
    embeddings: np.ndarray, labels: np.ndarray, *, queries: np.ndarray | None = None, seed: int = 0
) -> Curve:
    """Measures how many results are wrong, searching for each of some images among all others.

    With W_q(t) of the A_q(t) results of query q that are at least as similar as t being of another class,

        wrong(t) = mean of W_q(t) / A_q(t) over the queries with A_q(t) > 0

    so that a query's nearest image counts much if it is accepted alone, and as one of many if it is not.

    Images of one class resemble one another, so the interval is that of drawing classes. A class has part in
    the error e(t) = sum of W_q / A_q as query and as result. With n queries in all that have results, the
    influence of class c, which has the share m_c of all images, is

        z_c = sum over its queries of (W_q / A_q - wrong) + sum over its images of 1 / A_q - m_c e

    where the second sum is over the queries of other classes that accept the image. The standard error is
    sqrt(C / (C - 1) sum of z_c^2) / n (the infinitesimal jackknife, for both sides of a pair at once), and
    the interval that of Student's t with C - 1 degrees of freedom, C being the number of classes of queries.
    Four wrong results are added to the upper end, since none of few seen is no proof that there is none.
    benchmarks/matches.py shows how often the upper end holds for other classes.

    Args:
        embeddings: `[images, dim]` of unit norm.
        labels: `[images]` integers; negative for an image of no known class, which is wrong as a result and
            no query.
        queries: `[images]` bool, whether to search for the image; its class must not have been trained on.
            None: for all. At most 2,000 are drawn.
        seed: seed of the draw.

    Raises:
        InputError: the queries are of one class only, or no two images are of one of their classes.
    """
    return curve_of_parts([(embeddings, queries)], labels, seed=seed)


def curve_of_parts(
    parts: Sequence[tuple[np.ndarray, np.ndarray | None]], labels: np.ndarray, *, seed: int = 0
) -> Curve:
    """Does what `curve` does for queries in parts, each with the embeddings of a model of its own.

    So each class can be searched for by a model that was not trained on it, though all are trained on.

    Args:
        parts: `[images, dim]` embeddings of unit norm, and `[images]` bool, which images are queries.
        labels: `[images]` integers, as of `curve`.
        seed: seed of the draw.

    Raises:
        InputError: see `curve`.
    """
    labels = np.asarray(labels)
    knowns = [labels >= 0 if queries is None else (labels >= 0) & queries for _, queries in parts]
    _, places, sizes = np.unique(
        labels[known := np.any(knowns, axis=0)], return_index=True, return_counts=True
    )
    of_class = np.isin(labels, labels[known][places])
    if len(sizes) < 2 or np.count_nonzero(of_class) == len(sizes):
        raise InputError(TOO_FEW)
    # An image of no known class is a class of its own.
    alone = np.where(labels < 0, np.arange(len(labels)), -1)
    _, classes = np.unique(np.stack([np.maximum(labels, -1), alone]), axis=1, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(known))[:QUERIES]
    chosen = [np.sort(drawn[part[drawn]]) for part in knowns]
    found = [
        exact(rows[some], rows, min(RESULTS + 1, len(labels)), some) for (rows, _), some in zip(parts, chosen)
    ]
    index, similarity = (np.concatenate(columns) for columns in zip(*found))
    similarity = np.where(index >= 0, similarity, -np.inf)
    if similarity.shape[1] > RESULTS:
        # Of results as similar as the first one that is left out, some would be left out by their order.
        similarity = np.where(similarity > similarity[:, -1:] + ROUNDING, similarity, -np.inf)
    return _measured(similarity, classes[index], classes[np.concatenate(chosen)], np.bincount(classes))


def _measured(similarity: np.ndarray, found: np.ndarray, own: np.ndarray, sizes: np.ndarray) -> Curve:
    """The curve of results.

    Args:
        similarity: `[queries, results]` descending; -inf for none.
        found: `[queries, results]` their classes.
        own: `[queries]` the classes of the queries.
        sizes: `[classes]` the number of images of each class.
    """
    right, share = found == own[:, None], sizes / sizes.sum()
    nearest, count = similarity[:, 0], len(np.unique(own))
    steps = np.unique(np.quantile(nearest[np.isfinite(nearest)], np.arange(STEPS) / STEPS, method="lower"))
    # One class, if all images that were drawn are of it, has no spread; its interval is all that there is.
    freedom = max(1, count - 1)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    rows = []
    for step in steps:
        accepted = similarity >= step - ROUNDING
        number = accepted.sum(axis=1)
        query, place = np.nonzero(accepted & ~right)
        each = 1 / number[query]
        error, queries = each.sum(), np.count_nonzero(number)
        as_query = np.bincount(own[query], each, len(sizes)) - error / queries * np.bincount(
            own[number > 0], minlength=len(sizes)
        )
        as_result = np.bincount(found[query, place], each, len(sizes)) - share * error
        spread = math.sqrt(count / freedom * np.sum((as_query + as_result) ** 2)) / queries
        low, high = error / queries - quantile * spread, quantile * spread
        high += (error + UNSEEN) / (queries + UNSEEN)
        rows.append((error / queries, max(low, 0), min(high, 1)))
    wrong, low, high = np.array(rows).T
    if count < FEWEST_CLASSES:
        low, high = np.zeros(len(steps)), np.ones(len(steps))
    good = nearest[right[:, 0]]
    recall = np.array([np.mean(good >= step - ROUNDING) if len(good) else 0.0 for step in steps])
    return Curve(steps, wrong, low, high, recall, int(sizes.sum()), count)


def threshold(measured: Curve, precision: float = MATCH, images: int | None = None) -> Threshold:
    """Returns the smallest similarity from which on a share of the results are right.

    In an index that is larger than the images of the curve, results are at most as many times as often
    wrong as it has as many times the images: each image is the wrong result of a query as often as one here.

    Args:
        measured: the curve.
        precision: the share, above 0, up to 1.
        images: number of images of the index; None: as many as the curve was measured in.
    """
    precision = checks.number("precision", precision, above=0, at_most=1)
    images = measured.images if images is None else checks.integer("images", images, at_least=1)
    most = (1 - precision) / max(1, images / measured.images)
    found = [
        first_below(measured.similarity, bound, most)
        for bound in (measured.wrong, measured.low, measured.high)
    ]
    similarity, low, high = found
    if low == measured.similarity[0]:  # Below the least similarity, nothing was seen.
        low = -1.0
    place = np.searchsorted(measured.similarity, high)
    recall = float(measured.recall[place]) if place < len(measured.recall) else 0.0
    return Threshold(similarity, low, high, precision, recall, images, measured.classes)


def first_below(similarity: np.ndarray, bound: np.ndarray, most: float) -> float:
    """The first similarity from which on the bound is at most `most`; infinite if there is none."""
    places = np.flatnonzero(bound <= most + 1e-9)
    return float(similarity[places[0]]) if len(places) else math.inf


def thresholds(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    precisions: Sequence[float] = (MATCH, PERHAPS),
    images: int | None = None,
    seed: int = 0,
) -> list[Threshold]:
    """Returns the `threshold` of each precision by the `curve` of images of classes that were not trained on.

    Args:
        embeddings: `[images, dim]` of unit norm.
        labels: `[images]` integers, with at least two classes and one pair of equal labels.
        precisions: above 0, up to 1.
        images: number of images of the index that they shall hold for; None: as many as these.
        seed: seed of the draw of queries, if there are more than 2,000.

    Raises:
        InputError: there is one class only, or no two images of one class.

    >>> rows = np.array([[1, 0], [0.96, 0.28], [0, 1], [0.28, 0.96], [0.6, 0.8]])
    >>> (found,) = thresholds(rows, np.array([3, 3, 5, 5, 7]), precisions=[1.0])
    >>> round(found.similarity, 2), found.high, found.classes
    (0.96, inf, 3)
    """
    precisions = checks.sequence("precisions", precisions, checks.number, above=0, at_most=1)
    measured = curve(embeddings, labels, seed=seed)
    return [threshold(measured, precision, images) for precision in precisions]


def in_words(found: Threshold) -> str:
    """Says what a threshold promises.

    >>> in_words(Threshold(0.7, 0.65, 0.8, 0.95, 0.5, 2000, 9))
    "In an index of up to 2,000 images, results from similarity 0.800 on are called a match: at least 95 % \
of them are of the query's class (95 % confidence, by 9 classes)."
    """
    share = f"{100 * found.precision:g} % of them are of the query's class"
    if math.isfinite(found.high):
        return (
            f"In an index of up to {found.images:,} images, results from similarity {found.high:.3f} on are"
            f" called a match: at least {share} (95 % confidence, by {found.classes} classes)."
        )
    none = f"In an index of {found.images:,} images, no result is called a match: "
    if found.classes < FEWEST_CLASSES:
        return f"{none}{found.classes} classes are too few to promise anything; {FEWEST_CLASSES} are needed."
    if math.isfinite(found.similarity):
        return (
            f"{none}the images of {found.classes} classes do not suffice to promise from which similarity on"
            f" {share}."
        )
    return f"{none}among the images of {found.classes} classes, from no similarity on {share}."


def as_json(measured: Curve) -> dict[str, Any]:
    """Returns a curve as JSON has it; `from_json` reads it."""
    return {name: np.asarray(value).tolist() for name, value in measured._asdict().items()}


def from_json(tree: Mapping[str, Any]) -> Curve:
    """Returns the curve of `as_json`."""
    return Curve(
        **{name: np.array(value) if isinstance(value, list) else value for name, value in tree.items()}
    )
