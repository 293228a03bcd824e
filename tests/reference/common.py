"""What the oracles share: unit rows, positives and negatives, the mean over the valid queries."""

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


def cosine(a, b):
    """s of two unit or zero rows: equal for equal rows, exactly 1 of a row and itself, 0 of zeros."""
    dot, aa, bb = (math.fsum(x * y for x, y in zip(*rows)) for rows in ((a, b), (a, a), (b, b)))
    return dot / math.sqrt(aa * bb) if aa * bb > 0 else 0.0


def each_query(query_labels, queries, gallery_labels, gallery, self_index, include_self=False):
    """For each query: s of every gallery row, the positives (self among them if so told), the negatives."""
    queries, gallery = unit(queries).tolist(), unit(gallery).tolist()
    for q, query in enumerate(queries):
        positives, negatives = candidates(q, query_labels, gallery_labels, self_index)
        if include_self and positives and self_index[q] >= 0:
            positives = [*positives, self_index[q]]
        yield [cosine(query, row) for row in gallery], positives, negatives


def by_query(loss, *pairs, include_self=False):
    """(loss(s, positives, negatives), or 0 without a positive; whether the query is valid)."""
    queries = list(each_query(*pairs, include_self))
    losses = [loss(s, positives, negatives) if positives else 0.0 for s, positives, negatives in queries]
    return np.array(losses), np.array([bool(positives) for _, positives, _ in queries])


def mean_over_positives(term, *pairs, temperature, include_self):
    """(1/|P| sum over positives i of term(R(i, S_N), R(i, S_P)), whether the query is valid)."""

    def loss(s, positives, negatives):
        terms = []
        for i in positives:
            negatives_before = soft_rank(i, negatives, s, temperature)
            positives_before = soft_rank(i, positives, s, temperature)
            terms.append(term(negatives_before, positives_before))
        return sum(terms) / len(terms)

    return by_query(loss, *pairs, include_self=include_self)


def one_batch(labels, embeddings):
    """A batch as its own gallery: the arguments of an oracle."""
    return labels, embeddings, labels, embeddings, range(len(labels))


def mean(losses, valid, weights=None):
    """sum of w_q L_q / sum of w_q over the valid queries; 0 if none is valid."""
    weights = np.ones(len(losses)) if weights is None else np.asarray(weights, np.float64)
    total = sum(w for w, is_valid in zip(weights, valid) if is_valid)
    return sum(w * loss for w, loss, is_valid in zip(weights, losses, valid) if is_valid) / (total or 1)
