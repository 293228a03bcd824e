"""The metrics of rankings."""

import math

import numpy as np

from tests.reference.common import candidates


def relevance(similarity, query_labels, gallery_labels, self_index):
    """For each query that has a positive, else None: is the 1st, 2nd, ... nearest row a positive?

    A negative tied with a positive stands before it.
    """
    rankings = []
    for q, s in enumerate(similarity):
        positives, negatives = candidates(q, query_labels, gallery_labels, self_index)
        ranking = sorted([*positives, *negatives], key=lambda j: (-s[j], j in positives))
        rankings.append([j in positives for j in ranking] if positives else None)
    return rankings


def recall_at_k(similarity, query_labels, gallery_labels, self_index, k):
    """Share of the queries with a positive that have one among their k nearest; NaN without any."""
    rankings = relevance(similarity, query_labels, gallery_labels, self_index)
    hits = [any(ranking[:k]) for ranking in rankings if ranking is not None]
    return sum(hits) / len(hits) if hits else math.nan


def average_precision(similarity, query_labels, gallery_labels, self_index):
    """AP of each query over its whole ranking: mean of the precision at its positives; NaN if none."""
    result = []
    for ranking in relevance(similarity, query_labels, gallery_labels, self_index):
        if ranking is None:
            result.append(math.nan)
            continue
        places = [place for place, positive in enumerate(ranking, start=1) if positive]
        result.append(sum(n / place for n, place in enumerate(places, start=1)) / len(places))
    return np.array(result)
