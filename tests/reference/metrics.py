"""The metrics of rankings, of classes and of pairs of images."""

import itertools
import math

import numpy as np

from tests.reference.common import candidates, cosine, unit


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
    rankings = relevance(similarity, query_labels, gallery_labels, self_index)
    return np.array([math.nan if ranking is None else ap(ranking) for ranking in rankings])


def ap(ranking):
    """Mean of the precision at the positives of a ranking."""
    return sum(precision(ranking, k) for k in places(ranking)) / sum(ranking)


def ap_at_r(ranking):
    """Sum of the precision at the positives among the R nearest, divided by R."""
    return sum(precision(ranking, k) for k in places(ranking) if k <= sum(ranking)) / sum(ranking)


def precision(ranking, k):
    """Share of positives among the k nearest."""
    return sum(ranking[:k]) / k


def hierarchical_ap(ranking, levels, alpha=1.0):
    """H-AP of arXiv 2207.04873; the nearest rows share `ranking` of the levels with the query."""
    rel = [(level / levels) ** alpha / ranking.count(level) if level else 0.0 for level in ranking]
    total = 0.0
    for i, level in enumerate(ranking):
        if level:
            total += sum(min(rel[i], rel[j]) for j in range(i + 1)) / (i + 1)
    return total / sum(rel)


def graded_ndcg(ranking):
    """nDCG with gain 2^l - 1 for a row that shares l levels with the query."""

    def discounted(levels):
        return sum((2**level - 1) / math.log2(1 + rank) for rank, level in enumerate(levels, start=1))

    return discounted(ranking) / discounted(sorted(ranking, reverse=True))


def average_set_intersection(ranking):
    """ASI of arXiv 2207.04873: how many of the n nearest have the levels of the n best."""
    best, depth, total = sorted(ranking, reverse=True), sum(level > 0 for level in ranking), 0.0
    for n in range(1, depth + 1):
        near, first = ranking[:n], best[:n]
        total += sum(min(near.count(level), first.count(level)) for level in set(first)) / n
    return total / depth


def r_precision(ranking):
    """Precision at the number of positives."""
    return precision(ranking, sum(ranking))


def reciprocal_rank(ranking):
    """1 / rank of the first positive."""
    return 1 / (1 + ranking.index(True))


def ndcg(ranking):
    """Discounted gain of a ranking, divided by that of the ranking with all positives in front."""
    return discounted_gain(ranking) / discounted_gain(sorted(ranking, reverse=True))


def discounted_gain(ranking):
    """Sum of 1 / log2(1 + rank) over the positives."""
    return sum(positive / math.log2(1 + rank) for rank, positive in enumerate(ranking, start=1))


def ap_at_k(ranking, k):
    """Sum of the precision at the positives among the k nearest, divided by the most that there can be."""
    return sum(precision(ranking, place) for place in places(ranking) if place <= k) / min(sum(ranking), k)


def reciprocal_rank_at_k(ranking, k):
    """The same as `reciprocal_rank`, 0 without a positive among the k nearest."""
    return reciprocal_rank(ranking) if any(ranking[:k]) else 0.0


def ndcg_at_k(ranking, k):
    """Discounted gain of the k nearest, divided by that of the k nearest of the best ranking."""
    return discounted_gain(ranking[:k]) / discounted_gain(sorted(ranking, reverse=True)[:k])


def trapezoid_ap(ranking):
    """Area under the precision-recall curve: a trapezoid from the precision just before each positive."""
    area = 0.0
    for rank in places(ranking):
        before = precision(ranking, rank - 1) if rank > 1 else 1.0
        area += (before + precision(ranking, rank)) / 2 / sum(ranking)
    return area


def capped_precision(ranking, k):
    """Precision at k, or at the last positive if that comes before."""
    return precision(ranking, min(k, places(ranking)[-1]))


def places(ranking):
    """The ranks of the positives, from 1."""
    return [rank for rank, positive in enumerate(ranking, start=1) if positive]


def class_distances(rows, labels):
    """dists_intra and dists_inter by all pairs, NaN where there is none."""
    rows, labels = unit(rows), [int(label) for label in labels]
    intra, means = [], []
    for label in sorted(set(labels)):
        members = [row for row, its in zip(rows, labels) if its == label]
        pairs = [1 - cosine(a, b) for a, b in itertools.combinations(members, 2)]
        intra += [sum(pairs) / len(pairs)] if pairs else []
        means.append(sum(members) / len(members))
    inter = [1 - cosine(a, b) for a, b in itertools.combinations(means, 2)]
    return tuple(sum(values) / len(values) if values else math.nan for values in (intra, inter))


def pair_similarities(rows, labels):
    """The similarities of all positive and of all negative pairs of images."""
    rows, positives, negatives = np.asarray(rows, np.float64), [], []
    for i, j in itertools.combinations(range(len(rows)), 2):
        (positives if int(labels[i]) == int(labels[j]) else negatives).append(float(rows[i] @ rows[j]))
    return positives, negatives


def roc_auc(positives, negatives):
    """How often a positive is above a negative; equals count half."""
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    return wins / len(positives) / len(negatives)


def tar_at_far(positives, negatives, accepted):
    """The greatest share of positives above some value that at most so many negatives are above.

    Of the values that accept so few negatives it is enough to try those of the similarities.
    """
    thresholds = [t for t in [*positives, *negatives] if sum(n > t for n in negatives) <= accepted]
    return max(sum(p > t for p in positives) / len(positives) for t in thresholds)


def opis(rows, labels, thresholds):
    """Variance between classes of the utility of a threshold, averaged over the thresholds."""
    rows, variances = np.asarray(rows, np.float64), []
    for threshold in thresholds:
        utilities = []
        for one in sorted({int(label) for label in labels}):
            own, others = [], []
            for i, j in itertools.combinations(range(len(rows)), 2):
                members = (int(labels[i]) == one) + (int(labels[j]) == one)
                if members:
                    (own if members == 2 else others).append(math.dist(rows[i], rows[j]) <= threshold)
            if own and others:
                found, refused = sum(own) / len(own), 1 - sum(others) / len(others)
                utilities.append(2 * found * refused / (found + refused) if found + refused else 0.0)
        mean = sum(utilities) / len(utilities)
        variances.append(sum((utility - mean) ** 2 for utility in utilities) / len(utilities))
    return sum(variances) / len(variances)


def entropy(partition):
    """That of the shares of the parts."""
    shares = [sum(value == one for value in partition) / len(partition) for one in set(partition)]
    return -sum(p * math.log(p) for p in shares)


def mutual_information(first, second):
    """Normalised by the arithmetic mean of the entropies, of two partitions of the same things."""
    return 2 * information(first, second) / (entropy(first) + entropy(second))


def adjusted_mutual_information(first, second):
    """Less its mean over all orders of the second partition."""
    orders = list(itertools.permutations(second))
    chance = sum(information(first, order) for order in orders) / len(orders)
    return (information(first, second) - chance) / ((entropy(first) + entropy(second)) / 2 - chance)


def information(first, second):
    """That of two partitions of the same things."""
    count = len(first)

    def share(*values):
        return sum(pair == values for pair in zip(first, second)) / count

    found = 0.0
    for a, b in set(zip(first, second)):
        outer = sum(value == a for value in first) * sum(value == b for value in second) / count**2
        found += share(a, b) * math.log(share(a, b) / outer)
    return found
