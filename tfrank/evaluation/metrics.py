"""Retrieval metrics. Recall@K is the hit rate of metric learning: the share of queries with at least one
image of their class among the K nearest, the query itself left out.

Queries without a positive have no metric; they are left out of every mean. Ties are ranked
pessimistically: a negative as similar as a positive stands before it.
"""

from collections.abc import Sequence

import numpy as np

from tfrank.checks import InputError
from tfrank.evaluation.ranks import Ranks


def recall_at_k(ranks: Ranks, k: int) -> float:
    """Share of the queries with a positive whose first positive is among the k nearest."""
    first = ranks.rank[ranks.start[:-1][ranks.positives > 0]]
    return float(np.mean(first <= k))


def mean_average_precision(ranks: Ranks) -> float:
    """Mean over the queries with a positive of the mean of the precisions at their positives."""
    parts = np.split(ranks.rank, ranks.start[1:-1])
    return float(np.mean([np.mean(np.arange(1, len(r) + 1) / r) for r in parts if len(r)]))


def summarize(ranks: Ranks, ks: Sequence[int]) -> dict[str, float]:
    """`recall_at_<k>` for each k, `map`, and the numbers of `queries` and of `lone_queries` left out."""
    lone = int(np.sum(ranks.positives == 0))
    queries = len(ranks.positives) - lone
    _check_queries(queries)
    metrics = {f"recall_at_{k}": recall_at_k(ranks, k) for k in ks}
    return {
        **metrics,
        "map": mean_average_precision(ranks),
        "queries": queries,
        "lone_queries": lone,
    }


def neighbor_recalls(
    index: np.ndarray,
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
    self_index: np.ndarray,
    ks: Sequence[int],
) -> dict[str, float]:
    """`recall_at_<k>` from lists of neighbours, of which -1 is none.

    Args:
        index: `[queries, at least max(ks)]` gallery rows, nearest first, the query itself left out.
        query_labels: `[queries]`.
        gallery_labels: `[gallery]`.
        self_index: `[queries]` the query's own gallery row, or -1.
        ks: the Ks.
    """
    labels, sizes = np.unique(gallery_labels, return_counts=True)
    place = np.minimum(np.searchsorted(labels, query_labels), len(labels) - 1)
    positives = np.where(labels[place] == query_labels, sizes[place], 0) - (self_index >= 0)
    hit = (gallery_labels[index] == query_labels[:, None]) & (index >= 0)
    hit = hit[positives > 0]
    lone = int(np.sum(positives <= 0))
    _check_queries(len(hit))
    recalls = {f"recall_at_{k}": float(hit[:, :k].any(axis=1).mean()) for k in ks}
    return {**recalls, "queries": len(hit), "lone_queries": lone}


def _check_queries(count):
    if not count:
        raise InputError("No image has another of its class, so there is nothing to retrieve.")
