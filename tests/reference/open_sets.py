"""Votes of nearest images, and the metrics of open sets."""

import math


def vote(similarities, labels, sizes, temperature):
    """The label with most votes, its share, and its score; of equal votes the label of the nearest."""
    totals = {}
    for s, label in zip(similarities, labels):
        if s > -math.inf:
            totals[label] = totals.get(label, 0.0) + math.exp(s / temperature) / sizes[label]
    best = max(totals, key=totals.get)
    share = totals[best] / sum(totals.values())
    return best, share, temperature * (math.log(totals[best]) + math.log(share))


def classified(query, images, nearest, temperature):
    """The vote of the nearest of some (row, label)."""
    found = sorted(((float(query @ row), label) for row, label in images), key=lambda pair: -pair[0])
    names = [label for _, label in images]
    sizes = {label: names.count(label) for label in names}
    return vote(*zip(*found[:nearest]), sizes, temperature)


def rates(known, unknown):
    """Accuracy, AUROC and OSCR of known queries, (score, right), and the scores of unknown ones."""
    auroc = oscr = 0.0
    for score, right in known:
        for other in unknown:
            wins = 1.0 if score > other else 0.5 if score == other else 0.0
            auroc += wins / len(known) / len(unknown)
            oscr += wins * right / len(known) / len(unknown)
    return sum(right for _, right in known) / len(known), auroc, oscr


def at_threshold(known, unknown, threshold):
    """Share of the known that are right at the threshold, and of the unknown that are below it."""
    kept = sum(right and score >= threshold for score, right in known)
    return kept / len(known), sum(score < threshold for score in unknown) / len(unknown)


def spread(values, labels, mean):
    """The variance that drawing classes gives a mean over queries."""
    classes, total = sorted(set(labels)), 0.0
    for one in classes:
        total += sum(value - mean for value, label in zip(values, labels) if label == one) ** 2
    return len(classes) / (len(classes) - 1) * total / len(values) ** 2
