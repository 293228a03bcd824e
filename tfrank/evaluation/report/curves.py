"""The data of a report's charts, as arrays; and the selection of queries and classes that a report shows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.parallel import Gallery, count_physical_cores, in_parallel
from tfrank.evaluation.retrieval_ranks import Ranks

# Similarities that a thread counts at a time: 16 MiB in float32.
BLOCK_SIMILARITIES = 2**22
# Positives whose precisions are computed together.
BLOCK_POSITIVES = 2**18
# Number of principal components passed to t-SNE: more add noise and are slow.
COMPONENTS = 50
# Smallest number of points for t-SNE: fewer have no neighbourhoods to preserve.
FEW_POINTS = 10
# Maximum number of queries of one class among the worst, and among the best.
MOST_OF_A_CLASS = 2


def precision_sums(ranks: Ranks, levels: int = 101) -> np.ndarray:
    """The interpolated precision at equally spaced levels of recall, from 0 to 1, summed over queries.

    For a query with n positives, the i-th at rank r_i, the interpolated precision at recall R is the highest
    precision at any recall of at least R: `max i / r_i over i with i / n >= R`
    (Manning, Raghavan and Schütze, Introduction to Information Retrieval, section 8.4).
    Queries without a positive add nothing. Sums of parts of the queries add up.

    Args:
        ranks: the ranks of the positives of every query.
        levels: number of levels, from recall 0 to recall 1.

    Returns:
        `[levels]` float64.

    Raises:
        InputError: there are fewer than two levels.

    >>> precision_sums(Ranks(np.array([0, 2]), np.array([1, 4])), levels=3).tolist()
    [1.0, 1.0, 0.5]
    """
    steps = np.arange(checks.integer("levels", levels, at_least=2))
    total = np.zeros(levels)
    for count in np.unique(ranks.positives[ranks.positives > 0]):
        # The first positive that reaches each level, computed in integers to avoid rounding errors.
        reached = np.maximum(-(-steps * count // (levels - 1)), 1) - 1
        starts, size = ranks.start[:-1][ranks.positives == count], max(1, BLOCK_POSITIVES // count)
        for first in range(0, len(starts), size):
            rows = starts[first : first + size, None] + np.arange(count)
            precision = np.arange(1, count + 1) / ranks.rank[rows]
            highest = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
            total += highest[:, reached].sum(axis=0)
    return total


def recall_curve(first_rank: np.ndarray, max_k: int) -> tuple[np.ndarray, np.ndarray]:
    """Recall@K for K from 1 to `max_k`: the share of queries with a positive among the K nearest.

    Queries without a positive are left out.

    Args:
        first_rank: `[queries]` the rank of the first positive, NaN without one.
        max_k: the largest K.

    Returns:
        `[max_k]` K and `[max_k]` Recall@K.

    Raises:
        InputError: `max_k` is below 1, or no query has a positive.

    >>> recall_curve(np.array([2, 1]), 2)[1].tolist()
    [0.5, 1.0]
    """
    max_k = checks.integer("max_k", max_k, at_least=1)
    first = first_rank[np.isfinite(first_rank)].astype(np.int64)
    if not len(first):
        raise InputError("No image has another of its class, so there is nothing to draw a curve of.")
    found = np.bincount(np.minimum(first, max_k + 1), minlength=max_k + 2)
    return np.arange(1, max_k + 1), np.cumsum(found[1 : max_k + 1]) / len(first)


class Histogram(NamedTuple):
    """Histograms of the similarities of positive pairs (one class) and of negative pairs (two classes).

    Attributes:
        edges: `[bins + 1]` similarities, from -1 to 1.
        positive: `[bins]` density of the positive pairs; its integral is 1, or 0 without such pairs.
        negative: `[bins]` density of the negative pairs, likewise.
    """

    edges: np.ndarray
    positive: np.ndarray
    negative: np.ndarray


def similarity_histogram(
    queries: np.ndarray,
    gallery: np.ndarray,
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
    self_index: np.ndarray,
    *,
    sample: int = 2000,
    bins: int = 100,
    seed: int = 0,
) -> Histogram:
    """The densities of the similarities of positive and of negative pairs.

    Each sampled query makes a pair with every gallery row but its own.

    Args:
        queries: `[queries, dim]` float32, unit norm.
        gallery: `[gallery, dim]` float32, unit norm.
        query_labels: `[queries]` integers.
        gallery_labels: `[gallery]` integers.
        self_index: `[queries]` the query's own gallery row, or -1.
        sample: maximum number of queries, drawn without replacement.
        bins: number of bins between -1 and 1.
        seed: seed of the draw.

    >>> rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> labels = np.array([7, 7, 8])
    >>> found = similarity_histogram(rows, rows, labels, labels, np.arange(3), bins=4)
    >>> found.positive.tolist(), found.negative.tolist()
    ([0.0, 0.0, 0.0, 2.0], [0.0, 0.0, 2.0, 0.0])
    """
    sample = checks.integer("sample", sample, at_least=1)
    bins = checks.integer("bins", bins, at_least=1)
    drawn = np.sort(np.random.default_rng(seed).permutation(len(queries))[:sample])
    rows = Gallery(gallery)
    size = max(1, BLOCK_SIMILARITIES // max(len(gallery), 1))

    def counts(start):
        block = drawn[start : start + size]
        place = ((rows.similarities(queries[block]) + 1) * (bins / 2)).astype(np.int32)
        # Rounding may make the cosine of equal rows slightly larger than 1.
        np.clip(place, 0, bins - 1, out=place)
        positive = query_labels[block, None] == gallery_labels
        own = np.flatnonzero(self_index[block] >= 0)
        place[own, self_index[block[own]]] = bins
        return np.bincount((place + positive * (bins + 1)).ravel(), minlength=2 * bins + 2)

    total = sum(in_parallel(counts, range(0, len(drawn), size))).reshape(2, bins + 1)[:, :bins]
    negative, positive = total / np.maximum(total.sum(axis=1, keepdims=True), 1) * (bins / 2)
    return Histogram(np.linspace(-1, 1, bins + 1), positive, negative)


def map_2d(embeddings: np.ndarray, *, at_most: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A 2-D map of embeddings that keeps neighbourhoods: t-SNE (van der Maaten and Hinton, 2008).

    It is initialised with the first two principal components. Fewer than ten points, or points that all
    coincide, stay there.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        at_most: maximum number of rows, drawn without replacement.
        seed: seed of the draw.

    Returns:
        `[n]` the drawn rows, ascending, and their positions, `[n, 2]` float32. The directions of the axes
        have no meaning.

    >>> rows, places = map_2d(np.eye(4, dtype=np.float32), at_most=3)
    >>> len(rows), places.shape
    (3, (3, 2))
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    at_most = checks.integer("at_most", at_most, at_least=1)
    rows = np.sort(np.random.default_rng(seed).permutation(len(embeddings))[:at_most])
    # float64, because scikit-learn would sum in float32; and one thread below, to fix the order of sums.
    points = embeddings[rows].astype(np.float64)
    points -= points.mean(axis=0)
    if not np.any(np.abs(points) > 1e-6):
        return rows, np.zeros([len(rows), 2], np.float32)
    with threadpool_limits(1):
        points = PCA(min(COMPONENTS, *points.shape), svd_solver="full").fit_transform(points)
        start = np.pad(points, [(0, 0), (0, 1)])[:, :2].astype(np.float32)
        if len(rows) < FEW_POINTS:
            return rows, start
        # Initial spread for t-SNE, as scikit-learn chooses it.
        start *= 1e-4 / start[:, 0].std()
        perplexity = min(30, (len(rows) - 1) / 3)
        count_physical_cores()
        return rows, TSNE(perplexity=perplexity, init=start).fit_transform(points)


def wrong_on_top(first_rank: np.ndarray, most: int) -> np.ndarray:
    """`[queries]` number of wrong images before the first right one, at most `most`; NaN without a positive.

    >>> wrong_on_top(np.array([3, np.nan, 9]), 4)
    array([ 2., nan,  4.])
    """
    return np.minimum(first_rank - 1, most)


def choose_queries(
    average_precision: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    wrong: np.ndarray | None = None,
    similarity: np.ndarray | None = None,
    count: int = 8,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Chooses queries to show: the worst, the best (highest AP), and random ones.

    The worst have the most wrong images before the first right one. Ties are broken by the similarity of the
    nearest image, highest first (the most confident mistakes), then by AP, lowest first, then by order. The
    worst, and likewise the best, are of different classes if there are enough; at most two share a class.

    Args:
        average_precision: `[queries]`; NaN for a query without a positive, which is never chosen.
        labels: `[queries]` integers. None: each query is its own class.
        wrong: `[queries]` as from `wrong_on_top`. None: not used.
        similarity: `[queries]` similarity of the nearest image; NaN, which sorts last, if not known. None:
            not used.
        count: maximum number of queries of each kind.
        seed: seed of the random ones.

    Returns:
        The rows of "worst" (worst first), "best" (best first) and "random" (ascending).

    >>> chosen = choose_queries(np.array([0.5, np.nan, 0.1, 0.2]), np.array([1, 2, 3, 3]), count=2)
    >>> chosen["worst"].tolist(), chosen["best"].tolist()
    ([2, 0], [0, 3])
    """
    count = checks.integer("count", count, at_least=1)
    queries = np.flatnonzero(~np.isnan(average_precision))
    classes = np.arange(len(average_precision)) if labels is None else np.asarray(labels)
    equal = np.zeros(len(average_precision))

    def first_of(order):
        times = _times_before(classes[order])
        # Take the first of each class before the second.
        return order[np.sort(np.argsort(times, kind="stable")[: min(count, np.sum(times < MOST_OF_A_CLASS))])]

    # NaN sorts last.
    keys = (
        average_precision,
        -(equal if similarity is None else similarity),
        -(equal if wrong is None else wrong),
    )
    worst_first = np.lexsort([key[queries] for key in keys])
    best_first = np.argsort(-average_precision[queries], kind="stable")
    drawn = np.random.default_rng(seed).permutation(queries)[:count]
    return {
        "worst": first_of(queries[worst_first]),
        "best": first_of(queries[best_first]),
        "random": np.sort(drawn),
    }


def _times_before(values: np.ndarray) -> np.ndarray:
    """`[n]` number of earlier occurrences of each value.

    >>> _times_before(np.array([7, 8, 7, 7]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(values, kind="stable")
    _, starts, sizes = np.unique(values[order], return_index=True, return_counts=True)
    times = np.empty(len(values), int)
    times[order] = np.arange(len(values)) - np.repeat(starts, sizes)
    return times


class ClassScore(NamedTuple):
    """The metrics of the queries of one class.

    Attributes:
        name: the name of the class.
        queries: number of its queries with a positive.
        recall: Recall@1 of these queries.
        average_precision: their mean AP; None if it is not known.
        confused_with: the most frequent class of a wrong nearest image, or "".
        confused: number of queries with a nearest image of that class.
    """

    name: str
    queries: int
    recall: float
    average_precision: float | None
    confused_with: str
    confused: int


def worst_classes(
    labels: np.ndarray,
    recall: np.ndarray,
    average_precision: np.ndarray | None,
    count: int = 20,
    *,
    nearest: np.ndarray | None = None,
    names: Callable[[int], str] = str,
) -> list[ClassScore]:
    """The classes with the lowest Recall@1. Ties are broken by lower mAP, then by lower label.

    Args:
        labels: `[queries]` integers.
        recall: `[queries]` Recall@1 of each query, 0 or 1; NaN without a positive, which is left out.
        average_precision: `[queries]`; NaN without a positive. None: not known.
        count: maximum number of classes.
        nearest: `[queries]` the label of each query's nearest image. None: not known.
        names: gives the name of a label.

    >>> worst_classes(np.array([7, 7, 8]), np.array([1, 1, 0]), np.array([1, 0.5, 0.2]), count=1)[0]
    ClassScore(name='8', queries=1, recall=0.0, average_precision=0.2, confused_with='', confused=0)
    """
    count = checks.integer("count", count, at_least=1)
    kept = np.flatnonzero(~np.isnan(recall))
    classes, place, sizes = np.unique(labels[kept], return_inverse=True, return_counts=True)
    recalls = np.bincount(place, recall[kept], len(classes)) / sizes
    known = average_precision is not None
    precisions = np.bincount(place, average_precision[kept] if known else None, len(classes)) / sizes
    scores = []
    for row in np.lexsort((precisions, recalls))[:count]:
        found = np.empty(0, int) if nearest is None else nearest[kept[place == row]]
        wrong, times = np.unique(found[found != classes[row]], return_counts=True)
        confused_with = names(int(wrong[times.argmax()])) if len(wrong) else ""
        score = [int(sizes[row]), float(recalls[row]), float(precisions[row]) if known else None]
        confused = int(times.max(initial=0))
        scores.append(ClassScore(names(int(classes[row])), *score, confused_with, confused))
    return scores
