"""The losses of pairs, triplets and tuples."""

import math

import numpy as np

from tests.reference.common import by_query, candidates, cosine, each_query, unit


def triplet(*pairs, margin=0.2, mining="semi_hard", squared=True, soft=False, average="all", hardest=0):
    """The mean of eq. 1 of arXiv 1903.03238, or of its softplus, over mined triplets; and valid queries."""

    def of_triplet(positive, negative):
        if not squared:
            positive, negative = math.sqrt(max(positive, 0)), math.sqrt(max(negative, 0))
        if soft:
            return math.log(1 + math.exp(positive - negative))
        return max(positive + margin - negative, 0)

    def triplets(d2, positives, negatives):
        if mining == "all":
            return [(p, n) for p in positives for n in negatives]
        if mining == "hard":  # batch hard, arXiv 1703.07737
            return [(max(positives, key=lambda p: d2[p]), min(negatives, key=lambda n: d2[n]))]
        mined = []
        for p in positives:
            farther = [n for n in negatives if d2[n] > d2[p]]  # arXiv 1503.03832
            mined.append((p, min(farther or [max(negatives, key=lambda n: d2[n])], key=lambda n: d2[n])))
        return mined

    def loss(s, positives, negatives):
        if not negatives:
            return 0.0
        d2 = [2 - 2 * s_j for s_j in s]
        terms = [of_triplet(d2[p], d2[n]) for p, n in triplets(d2, positives, negatives)]
        all_terms.extend(terms if positives else [])
        return sum(terms) if average == "nonzero" else sum(terms) / len(terms)

    all_terms = []

    losses, _ = by_query(loss, *pairs)
    query_labels, _, gallery_labels, _, self_index = pairs
    everyone = range(len(losses))
    valid_queries = [q for q in everyone if all(candidates(q, query_labels, gallery_labels, self_index))]
    if hardest:
        valid_queries = sorted(valid_queries, key=lambda q: -losses[q])[:hardest]
    valid = np.array([q in valid_queries for q in everyone], bool)
    if average == "nonzero":
        losses = losses * valid.sum() / max(sum(term > 0 for term in all_terms), 1)
    return np.where(valid, losses, 0.0), valid


def contrastive(*pairs, margin=1.0, squared=True, average="all"):  # Hadsell et al., CVPR 2006, eq. 4
    """The mean over all other rows of d^2 or [m - d]_+^2, without the 1/2, and which queries are valid."""
    power = 2 if squared else 1

    if average == "nonzero":
        far, near, valid = [], [], []
        for s, positives, negatives in each_query(*pairs):
            d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
            valid.append(bool(positives or negatives))
            far.append([d[j] ** power for j in positives])
            near.append([max(margin - d[j], 0) ** power for j in negatives])
        sides = [
            np.array([sum(terms) for terms in of_queries])
            / max(sum(term > 0 for terms in of_queries for term in terms), 1)
            for of_queries in (far, near)
        ]
        return sum(valid) * sum(sides), np.array(valid)

    def loss(s, positives, negatives):
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        terms = [d[j] ** power for j in positives] + [max(margin - d[j], 0) ** power for j in negatives]
        return sum(terms) / len(terms)

    return by_query(loss, *pairs)


def rows_of(query_labels, queries, gallery_labels, gallery, self_index, normalize):
    """For each query: its row, the positives and the negatives; and the gallery's rows, as Python floats."""
    queries, gallery = (np.asarray(rows, np.float64) for rows in (queries, gallery))
    if normalize:
        queries, gallery = unit(queries), unit(gallery)
    groups = [candidates(q, query_labels, gallery_labels, self_index) for q in range(len(queries))]
    return [(row, *group) for row, group in zip(queries.tolist(), groups)], gallery.tolist()


def n_pairs(*pairs, normalize=False):  # Sohn, NIPS 2016; eq. 2 of arXiv 1903.03238
    """The mean over positives i of log(1 + sum over negatives j of exp(s_j - s_i)), and which are valid."""
    queries, gallery = rows_of(*pairs, normalize)
    losses = []
    for row, positives, negatives in queries:
        s = [math.fsum(x * y for x, y in zip(row, other)) for other in gallery]
        terms = [math.log1p(sum(math.exp(s[j] - s[i]) for j in negatives)) for i in positives]
        losses.append(sum(terms) / max(len(terms), 1))
    return np.array(losses), np.array([bool(positives) for _, positives, _ in queries])


def lifted_structure(*pairs, margin=1.0, squared=False, normalize=False):  # eq. 3 of arXiv 1903.03238
    """Half the mean over positives j of [J_qj]_+, or of its square, and which queries are valid."""
    queries, gallery = rows_of(*pairs, normalize)

    def dist(x, y):  # Unit rows are as far from rows of zeros as from orthogonal ones.
        return math.sqrt(max(2 - 2 * cosine(x, y), 0)) if normalize else math.dist(x, y)

    losses = []
    for row, positives, negatives in queries:
        A_query = sum(math.exp(margin - dist(row, gallery[k])) for k in negatives)
        terms = []
        for j in positives:
            others = [other for other, _, their_negatives in queries if j in their_negatives]
            A_row = sum(math.exp(margin - dist(gallery[j], other)) for other in others)
            has_negatives = A_query + A_row > 0
            J = dist(row, gallery[j]) + math.log(A_query + A_row) if has_negatives else 0.0
            terms.append(max(J, 0) ** (2 if squared else 1))
        losses.append(sum(terms) / max(len(terms), 1) / 2)
    return np.array(losses), np.array([bool(positives) for _, positives, _ in queries])
