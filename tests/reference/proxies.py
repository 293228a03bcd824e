"""Losses with proxies, as their papers write them: of the cosines of one embedding, and its class's place."""

import math

from tests.reference.common import cosine, unit


def proxy_nca(c, y, *, temperature=1 / 9):
    distances = [2 - 2 * cosine for cosine in c]
    others = [math.exp(-d / temperature) for z, d in enumerate(distances) if z != y]
    return -math.log(math.exp(-distances[y] / temperature) / sum(others)) if others else 0.0


def proxy_nca_pp(c, y, *, temperature=1 / 9):
    terms = [math.exp(-(2 - 2 * cosine) / temperature) for cosine in c]
    return -math.log(terms[y] / sum(terms))


def soft_triple(c, y, *, proxies_per_class=10, scale=20.0, gamma=0.1, margin=0.01, tau=0.2):
    """Without what tau weighs, which is of the proxies alone, see `center_distances`."""
    similarities = []
    for start in range(0, len(c), proxies_per_class):
        of_class = c[start : start + proxies_per_class]
        weights = [math.exp(cosine / gamma) for cosine in of_class]
        similarities.append(sum(w * cosine for w, cosine in zip(weights, of_class)) / sum(weights))
    own = math.exp(scale * (similarities[y] - margin))
    return -math.log(own / (own + sum(math.exp(scale * s) for z, s in enumerate(similarities) if z != y)))


def normalized_softmax(c, y, *, temperature=0.05):
    return -math.log(math.exp(c[y] / temperature) / math.fsum(math.exp(cosine / temperature) for cosine in c))


def arc_face(c, y, *, scale=64.0, margin=0.5, proxies_per_class=1):
    c = [max(c[start : start + proxies_per_class]) for start in range(0, len(c), proxies_per_class)]
    theta = math.acos(max(-1.0, min(1.0, c[y])))
    beyond = theta + margin > math.pi
    moved = math.cos(theta) - margin * math.sin(margin) if beyond else math.cos(theta + margin)
    own = math.exp(scale * moved)
    return -math.log(own / (own + sum(math.exp(scale * cosine) for z, cosine in enumerate(c) if z != y)))


def cos_face(c, y, *, scale=64.0, margin=0.35):
    own = math.exp(scale * (c[y] - margin))
    return -math.log(own / (own + sum(math.exp(scale * cosine) for z, cosine in enumerate(c) if z != y)))


LOSSES = {
    "proxy_nca": proxy_nca,
    "proxy_nca_pp": proxy_nca_pp,
    "soft_triple": soft_triple,
    "normalized_softmax": normalized_softmax,
    "arc_face": arc_face,
    "cos_face": cos_face,
}


def proxy_anchor(rows, places, *, alpha=32.0, delta=0.1):
    """Eq. 4, of all rows at once; each term is shared equally by its rows, times the number of rows."""
    proxies, batch = len(rows[0]) if rows else 0, len(rows)
    found = [0.0] * batch
    for z in range(proxies):
        own = [x for x in range(batch) if places[x] == z]
        others = [x for x in range(batch) if places[x] != z]
        pull = math.log(1 + math.fsum(math.exp(-alpha * (rows[x][z] - delta)) for x in own))
        push = math.log(1 + math.fsum(math.exp(alpha * (rows[x][z] + delta)) for x in others))
        for x in own:
            found[x] += batch * pull / len(set(places)) / len(own)
        for x in others:
            found[x] += batch * push / proxies / len(others)
    return found


# Those that are of a batch as a whole.
OF_BATCHES = {"proxy_anchor": proxy_anchor}


def losses(name, classes, labels, embeddings, proxies, **settings):
    """Of each embedding, by the sorted classes and their proxies, in the same order."""
    proxies = unit(proxies).tolist()
    rows = [[cosine(row, proxy) for proxy in proxies] for row in unit(embeddings).tolist()]
    places = [classes.index(int(label)) for label in labels]
    if name in OF_BATCHES:
        return OF_BATCHES[name](rows, places, **settings)
    return [LOSSES[name](row, place, **settings) for row, place in zip(rows, places)]


def center_distances(proxies, proxies_per_class):
    """SoftTriple's regulariser at tau = 1: over C K (K - 1), the distances of pairs within each class."""
    rows, total = unit(proxies).tolist(), 0.0
    for start in range(0, len(rows), proxies_per_class):
        for s in range(start, start + proxies_per_class):
            for t in range(start, s):
                total += math.sqrt(max(2 - 2 * cosine(rows[s], rows[t]), 0))
    classes = len(rows) // proxies_per_class
    return total / (classes * proxies_per_class * (proxies_per_class - 1))
