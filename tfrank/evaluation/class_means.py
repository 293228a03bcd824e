"""Means over classes, and the classes that dominate a mean over queries."""

from collections.abc import Mapping

import numpy as np

from tfrank.evaluation.metric_names import BY_CLASS
from tfrank.evaluation.retrieval_metrics import mean_name

# Per-query metrics for which a mean over classes is reported.
REPORTED = ("recall_at_1", "ap")
# Classes with at least TIMES the mean number of queries dominate if they have at least SHARE of all queries.
TIMES, SHARE = 4, 0.25


def class_mean(values: np.ndarray, labels: np.ndarray) -> float:
    """The mean over classes of the mean of each class's queries; NaN if no query has a value.

    Args:
        values: `[queries]` values of a metric; NaN for a query without a positive, which is left out.
        labels: `[queries]` integers.

    >>> class_mean(np.array([1.0, 1.0, 0.0, np.nan]), np.array([7, 7, 8, 9]))
    0.5
    """
    valid = np.isfinite(values)
    _, place, sizes = np.unique(labels[valid], return_inverse=True, return_counts=True)
    return float(np.mean(np.bincount(place, values[valid]) / sizes)) if len(sizes) else float("nan")


def class_means(per_query: Mapping[str, np.ndarray], labels: np.ndarray) -> dict[str, float]:
    """`recall_at_1_by_class` and `map_by_class`, each if its per-query metric is given.

    >>> class_means({"ap": np.array([1.0, 1.0, 0.5])}, np.array([7, 7, 8]))
    {'map_by_class': 0.75}
    """
    return {
        mean_name(name) + BY_CLASS: class_mean(per_query[name], labels)
        for name in REPORTED
        if name in per_query
    }


def dominant_classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that dominate a mean over queries.

    These are the classes with at least four times the mean number of queries, if together they have at least
    a quarter of all queries.

    Args:
        labels: `[queries]` integers, of the valid queries (those with a positive).

    Returns:
        `[n]` labels and `[n]` their numbers of queries, largest class first; empty if no class dominates.

    >>> dominant_classes(np.repeat([4, 5, 6, 7, 8], [80, 5, 5, 5, 5]))
    (array([4]), array([80]))
    >>> dominant_classes(np.repeat([4, 5, 6, 7, 8], 20))[0]
    array([], dtype=int64)
    """
    classes, sizes = np.unique(labels, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    large = order[sizes[order] * len(classes) >= TIMES * len(labels)]
    large = large if sizes[large].sum() >= SHARE * len(labels) else large[:0]
    return classes[large], sizes[large]
