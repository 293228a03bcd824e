"""The losses of pairs."""

import math

import numpy as np
import tensorflow as tf

from tests.reference.common import by_query, each_query


def by_query_with_negatives(loss, *pairs):
    """`by_query` of a loss that needs a negative too: 0, and not valid, where there is none."""

    def loss_or_zero(s, positives, negatives):
        return loss(s, positives, negatives) if negatives else 0.0

    losses, valid = by_query(loss_or_zero, *pairs)
    return losses, valid & np.array([bool(negatives) for _, _, negatives in each_query(*pairs)])


def mined(s, positives, negatives, epsilon):
    """The mining of arXiv 1904.06627: which positives and negatives are kept."""
    return (
        [p for p in positives if s[p] < max(s[n] for n in negatives) + epsilon],
        [n for n in negatives if s[n] > min(s[p] for p in positives) - epsilon],
    )


def multi_similarity(*pairs, alpha=2.0, beta=50.0, threshold=0.5, epsilon=0.1):  # arXiv 1904.06627
    """L_MS of the mined pairs, and which queries are valid."""

    def loss(s, positives, negatives):
        kept_positives, kept_negatives = mined(s, positives, negatives, epsilon)
        pull = sum(math.exp(-alpha * (s[p] - threshold)) for p in kept_positives)
        push = sum(math.exp(beta * (s[n] - threshold)) for n in kept_negatives)
        return math.log1p(pull) / alpha + math.log1p(push) / beta

    return by_query_with_negatives(loss, *pairs)


def circle_terms(s, positives, negatives, margin, gamma):
    """By row: the weights a, and the exponentials under the two sums of arXiv 2002.10857."""
    a = {p: max(1 + margin - s[p], 0) for p in positives} | {n: max(s[n] + margin, 0) for n in negatives}
    pull = {p: math.exp(-gamma * a[p] * (s[p] - (1 - margin))) for p in positives}
    push = {n: math.exp(gamma * a[n] * (s[n] - margin)) for n in negatives}
    return a, pull, push


def circle(*pairs, margin=0.4, gamma=80.0):  # arXiv 2002.10857
    """L_circle, and which queries are valid."""

    def loss(s, positives, negatives):
        _, pull, push = circle_terms(s, positives, negatives, margin, gamma)
        return math.log1p(sum(push.values()) * sum(pull.values()))

    return by_query_with_negatives(loss, *pairs)


def uniform_numbers(seed, step, p, size):
    """The numbers that the p-th positives draw by: 24 random bits each, keyed by seed, step and p."""
    key = tf.random.stateless_uniform([], [seed, step], None, None, tf.int64, "philox")
    bits = tf.random.stateless_uniform([size], [key, p], None, None, tf.uint32, "philox")
    return [int(number) // 2**8 / 2**24 for number in bits.numpy()]


def first_beyond(weights, share):
    """The first row up to which the weights sum to more than that share of all."""
    threshold, so_far = share * sum(weights.values()), 0.0
    for row, weight in weights.items():
        so_far += weight
        if so_far > threshold:
            return row
    return row


def negative_shares(
    query_labels,
    queries,
    gallery_labels,
    gallery,
    self_index,
    cutoff=0.5,
    nonzero_cutoff=1.4,
    sampled=True,
    seed=0,
    step=0,
):  # arXiv 1706.07567
    """[queries, gallery]: how much each negative counts, as drawn by the positives, or in expectation."""
    pairs = (query_labels, queries, gallery_labels, gallery, self_index)
    dim, labels = len(gallery[0]), [int(label) for label in gallery_labels]
    order = sorted(range(len(labels)), key=lambda j: (labels.count(labels[j]), labels[j], j))
    shares = np.zeros([len(queries), len(labels)])
    for q, (s, positives, negatives) in enumerate(each_query(*pairs)):
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        w = {}
        for n in order:
            if n in negatives and d[n] < min(nonzero_cutoff, 2):
                d_n = max(d[n], cutoff)
                w[n] = 1 / (d_n ** (dim - 2) * (1 - d_n**2 / 4) ** ((dim - 3) / 2))
        if sampled and w:
            place = order.index(self_index[q]) if self_index[q] >= 0 else q % len(labels)
            for p in range(len(positives)):
                drawn = first_beyond(w, uniform_numbers(seed, step, p, len(labels))[place])
                shares[q, drawn] += 1 / len(positives)
        else:
            for n in w:
                shares[q, n] = w[n] / sum(w.values())
    return shares


def margin_terms(*pairs, margin=0.2, boundary=1.2, **draw):  # arXiv 1706.07567
    """For each query the terms of all positives and of the negatives that they draw, how many of them are
    above 0, and how many positives there are.
    """
    shares, queries = negative_shares(*pairs, **draw), []
    for q, (s, positives, negatives) in enumerate(each_query(*pairs)):
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        far = [max(margin + d[p] - boundary, 0) for p in positives]
        draws = {n: len(positives) * shares[q, n] for n in negatives}
        near = [draws[n] * max(margin + boundary - d[n], 0) for n in negatives]
        number = sum(term > 0 for term in far)
        number += sum(draws[n] for n in negatives if margin + boundary - d[n] > 0)
        queries.append((sum(far) + sum(near), number, len(positives)))
    return map(np.array, zip(*queries))


def margin(*pairs, average="all", **options):
    """L_margin of the negatives drawn, or its expectation, and which queries are valid."""
    terms, above, positives = margin_terms(*pairs, **options)
    valid = positives > 0
    if average == "nonzero":
        return terms * valid.sum() / max(above.sum(), 1e-300), valid
    return terms / np.maximum(positives, 1), valid


def soft_histogram(values, num_bins):
    """The mean over the values of their soft assignment to nodes from -1 to 1 (arXiv 1611.00822, eq. 2)."""
    spacing = 2 / (num_bins - 1)
    nodes = [-1 + r * spacing for r in range(num_bins)]
    return [sum(max(1 - abs(v - t) / spacing, 0) for v in values) / len(values) for t in nodes]


def histogram(*pairs, num_bins=201):  # arXiv 1611.00822
    """The probability that a negative of the query is more similar than a positive pair; which are valid."""
    of_pairs = [s[p] for s, positives, negatives in each_query(*pairs) for p in positives if negatives]
    if of_pairs:
        h_positive = soft_histogram(of_pairs, num_bins)
        Phi = [sum(h_positive[: r + 1]) for r in range(num_bins)]

    def loss(s, positives, negatives):
        h_negative = soft_histogram([s[n] for n in negatives], num_bins)
        return sum(h * phi for h, phi in zip(h_negative, Phi))

    return by_query_with_negatives(loss, *pairs)


# dL_q/ds `[queries, gallery]` of losses whose gradient is not the slope of their value.


def sup_con(*pairs, temperature=0.1):  # arXiv 2004.11362
    """L_out of eq. 2, and which queries are valid."""

    def loss(s, positives, negatives):
        total = math.fsum(math.exp(s[j] / temperature) for j in [*positives, *negatives])
        return -sum(math.log(math.exp(s[p] / temperature) / total) for p in positives) / len(positives)

    return by_query(loss, *pairs)


def circle_slopes(*pairs, margin=0.4, gamma=80.0):
    """Of L_circle with the weights a as constants."""
    slopes = []
    for s, positives, negatives in each_query(*pairs):
        slopes.append([0.0] * len(s))
        if not (positives and negatives):
            continue
        a, pull, push = circle_terms(s, positives, negatives, margin, gamma)
        product = sum(pull.values()) * sum(push.values())
        # d log(1 + A B) / dA = B / (1 + A B), dA / ds_p = -gamma a_p times its exponential
        for p in positives:
            slopes[-1][p] = product / (1 + product) * -gamma * a[p] * pull[p] / sum(pull.values())
        for n in negatives:
            slopes[-1][n] = product / (1 + product) * gamma * a[n] * push[n] / sum(push.values())
    return np.array(slopes)


def margin_slopes(*pairs, margin=0.2, boundary=1.2, average="all", **draw):
    """Of L_margin with what is drawn, or the probabilities, as constants."""
    shares, slopes = negative_shares(*pairs, **draw), []
    for q, (s, positives, negatives) in enumerate(each_query(*pairs)):
        slopes.append([0.0] * len(s))
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        for p in positives:
            if margin + d[p] - boundary > 0:
                slopes[-1][p] = 1 / len(positives) * -1 / d[p]  # dd/ds = -1/d
        for n in negatives if positives else []:
            if margin + boundary - d[n] > 0 and shares[q, n]:
                slopes[-1][n] = -shares[q, n] * -1 / d[n]
    if average == "nonzero":
        _, above, positives = margin_terms(*pairs, margin=margin, boundary=boundary, **draw)
        return np.array(slopes) * positives[:, None] * (positives > 0).sum() / max(above.sum(), 1e-300)
    return np.array(slopes)


def tcm(*pairs, positive_margin=0.9, negative_margin=0.5, positive_weight=1.0, negative_weight=1.0):
    """The query's part of the loss of arXiv 2307.04047, times the valid queries; and which are valid."""
    queries = list(each_query(*pairs))
    valid = np.array([bool(positives or negatives) for _, positives, negatives in queries])
    pulls = [
        [positive_margin - s[p] for p in positives if s[p] <= positive_margin] for s, positives, _ in queries
    ]
    pushes = [
        [s[n] - negative_margin for n in negatives if s[n] >= negative_margin]
        for s, positives, negatives in queries
    ]
    losses = np.zeros(len(queries))
    for weight, sides in ((positive_weight, pulls), (negative_weight, pushes)):
        number = max(sum(len(terms) for terms in sides), 1)
        losses += weight * valid.sum() / number * np.array([sum(terms) for terms in sides])
    return losses, valid
