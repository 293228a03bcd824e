"""Losses of embeddings and of another model's embeddings of the same images, in plain loops."""

import math

from tests.reference.common import cosine, unit


def regression(embeddings, targets):
    """1 - the cosine of each embedding and its target."""
    return [1 - cosine(x, t) for x, t in zip(unit(embeddings), unit(targets))]


def relational(embeddings, targets):
    """RKD-D of Park et al.: for each image the mean Huber loss of its relative distances to the others."""
    number, (own, wanted) = len(embeddings), map(_relative_distances, (embeddings, targets))
    losses = []
    for q in range(number):
        total = 0.0
        for i in range(number):
            size = abs(own[q][i] - wanted[q][i])
            total += size**2 / 2 if size <= 1 else size - 0.5
        losses.append(total / (number - 1))
    return losses


def _relative_distances(rows):
    rows = unit(rows).tolist()
    distances = [[math.dist(one, other) for other in rows] for one in rows]
    mean = sum(map(sum, distances)) / (len(rows) * (len(rows) - 1))
    return [[value / mean for value in line] for line in distances]
