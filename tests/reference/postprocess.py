"""What is done to embeddings, or to rankings, after the model."""

import math

import numpy as np
from PIL import Image

from tests.reference.common import unit


def whitened(learnt_from, embeddings, power, dims, floor=1e-6):  # arXiv 1906.07589, section 4.2
    """normalize(diag(lambda^-p) V^T (e - mean)), from the singular values of the centered rows."""
    rows = np.asarray(learnt_from, np.float64)
    mean = np.array([math.fsum(column) / len(rows) for column in rows.T])
    _, singular, directions = np.linalg.svd(rows - mean)
    variances = [s * s / len(rows) for s in singular] + [0.0] * (rows.shape[1] - len(singular))
    result = []
    for e in np.asarray(embeddings, np.float64):
        entries = []
        for variance, direction in list(zip(variances, directions))[:dims]:
            sign = 1 if max(direction, key=abs) > 0 else -1
            along = math.fsum(sign * d * (x - m) for d, x, m in zip(direction, e, mean))
            entries.append(along / max(variance, floor * variances[0]) ** power)
        result.append(entries)
    return unit(result)


def expanded(queries, gallery, k, alpha, self_index):  # arXiv 1711.02512, section 3.3
    """normalize(q + sum over the k nearest x of max(s, 0)^alpha x); zeros stay."""
    result = []
    for query, own in zip(np.asarray(queries, np.float64), self_index):
        s = [math.fsum(a * b for a, b in zip(query, row)) for row in gallery.tolist()]
        nearest = sorted((j for j in range(len(gallery)) if j != own), key=lambda j: (-s[j], j))[:k]
        total = query.copy()
        for j in nearest if any(query) else []:
            total += (1 if alpha == 0 else max(s[j], 0) ** alpha) * np.asarray(gallery[j], np.float64)
        result.append(total)
    return unit(result)


def multi_scale(embed, images, scales):
    """The normalised sum of unit embeddings of one image at a time; resized by Pillow, channel by channel."""
    result = []
    for image in images:
        total = 0
        for scale in scales:
            height, width = (max(1, round(side * scale)) for side in image.shape[:2])
            channels = [
                np.asarray(Image.fromarray(channel).resize((width, height), Image.Resampling.BILINEAR))
                for channel in np.moveaxis(np.asarray(image, np.float32), 2, 0)
            ]
            total = total + unit(embed(np.stack(channels, axis=2)[None]))[0]
        result.append(total)
    return unit(result)


def k_reciprocal(queries, gallery, k1, k2, lambda_value, self_index):  # arXiv 1701.08398, section 3
    """`[queries, gallery]` of -d*, -inf for the query itself, with sets and dense vectors."""
    images = np.asarray([*gallery, *(q for q, own in zip(queries, self_index) if own < 0)], np.float64)
    everyone = range(len(images))
    d = []
    for a in images.tolist():
        squares = [max(2 - 2 * math.fsum(x * y for x, y in zip(a, b)), 0) for b in images.tolist()]
        d.append([square / max(squares) if max(squares) > 0 else 0.0 for square in squares])

    order = [sorted((j for j in everyone if j != p), key=lambda j: (d[p][j], j)) for p in everyone]

    def nearest(p, k):
        """p and its k nearest others."""
        return [p, *order[p][:k]]

    def reciprocal(p, k):
        return {q for q in nearest(p, k) if p in nearest(q, k)}

    vectors = []
    for p in everyone:
        found = reciprocal(p, k1)
        joined = set(found)
        for q in found:
            candidates = reciprocal(q, k1 // 2)
            if len(found & candidates) >= len(candidates) * 2 / 3:
                joined |= candidates
        vectors.append([math.exp(-d[p][j]) if j in joined else 0.0 for j in everyone])
    expanded_vectors = [
        [sum(vectors[q][j] for q in nearest(p, k2 - 1)) / len(nearest(p, k2 - 1)) for j in everyone]
        for p in everyone
    ]
    result = np.full([len(queries), len(gallery)], -np.inf)
    guests = iter(range(len(gallery), len(images)))
    for row, own in zip(result, self_index):
        p = own if own >= 0 else next(guests)
        for g in range(len(gallery)):
            pairs = list(zip(expanded_vectors[p], expanded_vectors[g]))
            jaccard = 1 - sum(min(pair) for pair in pairs) / sum(max(pair) for pair in pairs)
            if g != own:
                row[g] = -((1 - lambda_value) * jaccard + lambda_value * d[p][g])
    return result
