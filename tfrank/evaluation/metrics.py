"""Retrieval metrics. Recall@K is the hit rate of metric learning: the share of queries with at least one
image of their class among the K nearest, the query itself left out.

Queries without a positive have no metric; they are left out of every mean. Ties are ranked
pessimistically: a negative as similar as a positive stands before it.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tfrank.checks import InputError


def positive_ranks(
    blocks: Iterable[tuple[int, np.ndarray]],
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
) -> list[np.ndarray]:
    """For each query the ranks of its positives, ascending, from 1; empty for a lone query.

    All metrics follow from these, for any K, so no list of neighbours is kept.

    Args:
        blocks: (first query, `[block, gallery]` similarities), rows left out at -inf.
        query_labels: `[queries]` integers.
        gallery_labels: `[gallery]` integers.
    """
    ranks = []
    for start, block in blocks:
        for row, label in zip(block, query_labels[start : start + len(block)]):
            same = gallery_labels == label
            positives = np.sort(row[same & (row > -np.inf)])[::-1]
            negatives = np.sort(row[~same])
            before = len(negatives) - np.searchsorted(negatives, positives, side="left")
            ranks.append(before + np.arange(1, len(positives) + 1))
    return ranks


def recall_at_k(ranks: Sequence[np.ndarray], k: int) -> float:
    """Share of the queries with a positive whose first positive is among the k nearest."""
    return float(np.mean([r[0] <= k for r in ranks if len(r)]))


def mean_average_precision(ranks: Sequence[np.ndarray]) -> float:
    """Mean over the queries with a positive of the mean of the precisions at their positives."""
    return float(np.mean([np.mean(np.arange(1, len(r) + 1) / r) for r in ranks if len(r)]))


def summarize(ranks: Sequence[np.ndarray], ks: Sequence[int]) -> dict[str, float]:
    """`recall_at_<k>` for each k, `map`, and the numbers of `queries` and of `lone_queries` left out."""
    lone = sum(not len(r) for r in ranks)
    _check_queries(len(ranks) - lone)
    metrics = {f"recall_at_{k}": recall_at_k(ranks, k) for k in ks}
    return {
        **metrics,
        "map": mean_average_precision(ranks),
        "queries": len(ranks) - lone,
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
