"""What the papers say, as plain loops in float64: slow, readable, and nothing shared with tfrank.

Losses score queries against a gallery; `self_index[q]` is the query's own gallery row, or -1.
"""

import math

import numpy as np


def unit(embeddings):
    """Rows of norm 1, or of zeros where the norm is below 1e-6."""
    rows = np.asarray(embeddings, np.float64)
    norms = [math.hypot(*row) for row in rows]
    return np.array([row * 0 if norm < 1e-6 else row / norm for row, norm in zip(rows, norms)])


def candidates(q, query_labels, gallery_labels, self_index):
    """Gallery rows of the other positives and of the negatives of query q."""
    others = [j for j in range(len(gallery_labels)) if j != self_index[q]]
    positives = [j for j in others if int(gallery_labels[j]) == int(query_labels[q])]
    return positives, [j for j in others if j not in positives]


def sigmoid(x):
    """1 / (1 + exp(-x)), written so that no exp overflows."""
    return (1 + math.tanh(x / 2)) / 2


def soft_rank(i, rows, s, temperature):
    """R(i, S) of PNP eq. 2 and 3: how many of `rows`, other than i, stand before row i."""
    return sum(sigmoid((s[j] - s[i]) / temperature) for j in rows if j != i)


def mean_over_positives(
    term, query_labels, queries, gallery_labels, gallery, self_index, temperature, include_self
):
    """(1/|P| sum over positives i of term(R(i, S_N), R(i, S_P)), whether the query counts)."""
    queries, gallery = unit(queries), unit(gallery)
    losses, counts = [], []
    for q in range(len(queries)):
        positives, negatives = candidates(q, query_labels, gallery_labels, self_index)
        counts.append(bool(positives))
        if include_self and positives and self_index[q] >= 0:
            positives = [*positives, self_index[q]]
        s = (gallery @ queries[q]).tolist()
        terms = []
        for i in positives:
            negatives_before = soft_rank(i, negatives, s, temperature)
            positives_before = soft_rank(i, positives, s, temperature)
            terms.append(term(negatives_before, positives_before))
        losses.append(sum(terms) / max(len(terms), 1))
    return np.array(losses), np.array(counts)


def pnp(*pairs, variant="dq", alpha=4.0, b=4.0, temperature=0.01, include_self=False):  # arXiv 2102.04640
    """L_q of PNP, and which queries count."""

    def term(R, _):
        if variant == "o":  # eq. 5
            return R
        if variant == "iu":  # eq. 7
            return (1 + R) * math.log(1 + R)
        if variant == "ib":  # eq. 9
            return 1 / b**2 * (b * R - math.log(1 + b * R))
        if variant == "ds":  # eq. 12
            return math.log(1 + R)
        if variant == "dq":  # eq. 13, whose 1 is the mean of 1 over the positives
            return 1 - 1 / (1 + R) ** alpha

    return mean_over_positives(term, *pairs, temperature, include_self)


def smooth_ap(*pairs, temperature=0.01, include_self=False):  # arXiv 2007.12163
    """1 - AP_q of Smooth-AP, eq. 5 with the sigmoid of eq. 6 (j != i as in eq. 5), and which count."""

    def term(negatives_before, positives_before):
        return 1 - (1 + positives_before) / (1 + positives_before + negatives_before)

    return mean_over_positives(term, *pairs, temperature, include_self)


LOSSES = {"pnp": pnp, "smooth_ap": smooth_ap}


def one_batch(labels, embeddings):
    """A batch as its own gallery: the arguments of an oracle."""
    return labels, embeddings, labels, embeddings, range(len(labels))


def mean(losses, counts, weights=None):
    """sum of w_q L_q / sum of w_q over the queries that count; 0 if none does."""
    weights = np.ones(len(losses)) if weights is None else np.asarray(weights, np.float64)
    total = sum(w for w, count in zip(weights, counts) if count)
    return sum(w * loss for w, loss, count in zip(weights, losses, counts) if count) / (total or 1)


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
