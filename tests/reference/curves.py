"""What the charts of a report show, as plain loops over the pairs."""

import math
from fractions import Fraction

from tests.reference.common import candidates
from tests.reference.metrics import relevance


def precision_recall(similarity, query_labels, gallery_labels, self_index, levels):
    """The mean over queries of the highest precision at any recall of at least each level."""
    rankings = [r for r in relevance(similarity, query_labels, gallery_labels, self_index) if r is not None]
    means = []
    for number in range(levels):
        level, total = Fraction(number, levels - 1), 0.0
        for ranking in rankings:
            highest = 0.0
            for place in range(1, len(ranking) + 1):
                found = sum(ranking[:place])
                if Fraction(found, sum(ranking)) >= level:
                    highest = max(highest, found / place)
            total += highest
        means.append(total / len(rankings))
    return means


def similarity_histogram(similarity, query_labels, gallery_labels, self_index, bins):
    """Densities of positive and of negative pairs, bin by bin from -1 to 1."""
    width = 2 / bins
    counts = [[0] * bins, [0] * bins]
    for q, row in enumerate(similarity):
        for kind, rows in enumerate(candidates(q, query_labels, gallery_labels, self_index)):
            for j in rows:
                counts[kind][min(bins - 1, max(0, math.floor((row[j] + 1) / width)))] += 1
    return [[count / (max(1, sum(kind)) * width) for count in kind] for kind in counts]


def choose_queries(average_precision, labels, count, highest, wrong=None, similarity=None):
    """The queries of lowest, or highest, AP, of different classes while there are classes, then second ones.

    With `wrong` and `similarity` the lowest are first those of most wrong, then those of highest similarity.
    """

    def key(query):
        if highest:
            return -average_precision[query], query
        wrongs = 0 if wrong is None else -wrong[query]
        unlike = 0 if similarity is None else -similarity[query]
        return wrongs, math.inf if math.isnan(unlike) else unlike, average_precision[query], query

    order = sorted((q for q, ap in enumerate(average_precision) if not math.isnan(ap)), key=key)
    chosen, seen = [], []
    for times in (0, 1):
        for q in order:
            if len(chosen) < count and q not in chosen and seen.count(labels[q]) == times:
                chosen.append(q)
                seen.append(labels[q])
    return sorted(chosen, key=order.index)


def worst_classes(labels, recall, average_precision, nearest, count):
    """(label, queries, Recall@1, mAP, confused with, how often) of the classes of lowest Recall@1."""
    rows = []
    for label in sorted(set(labels)):
        queries = [
            q for q in range(len(labels)) if labels[q] == label and not math.isnan(average_precision[q])
        ]
        if not queries:
            continue
        wrong = [nearest[q] for q in queries if nearest[q] != label]
        most = min(set(wrong), key=lambda other: (-wrong.count(other), other)) if wrong else None
        r = sum(recall[q] for q in queries) / len(queries)
        ap = sum(average_precision[q] for q in queries) / len(queries)
        rows.append((label, len(queries), r, ap, most, wrong.count(most)))
    return sorted(rows, key=lambda row: (row[2], row[3], row[0]))[:count]
