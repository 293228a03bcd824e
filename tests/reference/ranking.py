"""The losses of rankings."""

import math

import numpy as np

from tests.reference.common import by_query, each_query, mean_over_positives, sigmoid, soft_rank


def pnp(*pairs, variant="dq", alpha=4.0, b=4.0, temperature=0.01, include_self=False):  # arXiv 2102.04640
    """L_q of PNP, and which queries are valid."""

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

    return mean_over_positives(term, *pairs, temperature=temperature, include_self=include_self)


def smooth_ap(*pairs, temperature=0.01, include_self=False):  # arXiv 2007.12163
    """1 - AP_q of Smooth-AP, eq. 5 with the sigmoid of eq. 6 (j != i as in eq. 5), and which are valid."""

    def term(negatives_before, positives_before):
        return 1 - (1 + positives_before) / (1 + positives_before + negatives_before)

    return mean_over_positives(term, *pairs, temperature=temperature, include_self=include_self)


def map_q(*pairs, num_bins=20, tie_aware=False, minimum=-1.0, include_self=False):  # arXiv 1906.07589
    """1 - AP_Q of eq. 11, and which queries are valid."""
    width = (1 - minimum) / (num_bins - 1)  # Delta

    def loss(s, positives, negatives):
        ap = relevant_so_far = rows_so_far = 0.0
        for m in range(1, num_bins + 1):
            center = 1 - (m - 1) * width
            relevant = rows = 0.0
            for i in [*positives, *negatives]:
                x = min(max(s[i], minimum), 1.0)
                delta = max(1 - abs(x - center) / width, 0)  # eq. 7
                rows += delta
                relevant += delta if i in positives else 0
            if tie_aware:  # eq. 13
                precision = (1 + relevant + 2 * relevant_so_far) / (1 + rows + 2 * rows_so_far)
            relevant_so_far, rows_so_far = relevant_so_far + relevant, rows_so_far + rows
            if not tie_aware:  # eq. 9
                precision = relevant_so_far / rows_so_far if rows_so_far > 0 else 0
            ap += precision * relevant / len(positives)  # eq. 10 and 11
        return 1 - ap

    return by_query(loss, *pairs, include_self=include_self)


def class_weights(labels, valid):
    """w_q: one over the number of valid queries of q's class in the batch; 0 where q is not valid."""
    valid_labels = [int(label) for label, is_valid in zip(labels, valid) if is_valid]
    return np.array(
        [1 / valid_labels.count(int(y)) if is_valid else 0.0 for y, is_valid in zip(labels, valid)]
    )


def fast_ap(*pairs, num_bins=10):  # Cakir et al., CVPR 2019
    """1 - FastAP of histograms of the squared distance, num_bins + 1 centers in [0, 4]; which are valid."""

    def histogram(squared_distances):
        centers = [4 * j / num_bins for j in range(num_bins + 1)]
        return [sum(max(1 - abs(z - c) * num_bins / 4, 0) for z in squared_distances) for c in centers]

    def loss(s, positives, negatives):
        h_positive = histogram([min(max(2 - 2 * s[i], 0), 4) for i in positives])
        h = histogram([min(max(2 - 2 * s[i], 0), 4) for i in positives + negatives])
        ap = 0.0
        for j in range(num_bins + 1):
            H_positive, H = sum(h_positive[: j + 1]), sum(h[: j + 1])
            ap += H_positive * h_positive[j] / H if H > 0 else 0
        return 1 - ap / len(positives)

    return by_query(loss, *pairs)


def rll(
    *pairs,
    margin=0.4,
    alpha=1.2,
    negative_temperature=10.0,
    positive_temperature=0.0,
    negative_weight=0.5,
):  # arXiv 1903.03238
    """L_RLL of eq. 13, and which queries are valid."""

    def weighted(violations, T):  # eq. 11 and 12 over the mined set; the greatest exponent is taken off all
        mined = [v for v in violations if v > 0]
        if not mined:
            return 0.0
        greatest = max(T * v for v in mined)
        w = [math.exp(T * v - greatest) for v in mined]  # eq. 9 and 10
        return sum(w_j * v for w_j, v in zip(w, mined)) / sum(w)  # a mined row's L_m (eq. 8) is its v

    def loss(s, positives, negatives):
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        L_P = weighted([d[j] - (alpha - margin) for j in positives], positive_temperature)
        L_N = weighted([alpha - d[j] for j in negatives], negative_temperature)
        return (1 - negative_weight) * L_P + negative_weight * L_N  # eq. 13

    return by_query(loss, *pairs)


def hard_ranks(s, rows):
    """rank(s) of Rolinek et al. over the number of rows: (1 + how many stand before i) / n, by row i."""
    return {i: (1 + sum(s[j] > s[i] for j in rows)) / len(rows) for i in rows}


def with_margin(s, positives, negatives, margin):
    """Scores by row, the positives margin / 2 lower and the negatives margin / 2 higher."""
    return {i: s[i] - margin / 2 for i in positives} | {i: s[i] + margin / 2 for i in negatives}


def blackbox_ap(*pairs, interpolation=4.0, margin=0.02):  # arXiv 1912.03500
    """1 - AP of the exact ranking under the margin, and which queries are valid."""

    def loss(s, positives, negatives):
        s = with_margin(s, positives, negatives, margin)
        precisions = [
            (1 + sum(s[j] > s[i] for j in positives)) / (1 + sum(s[j] > s[i] for j in s)) for i in positives
        ]
        return 1 - sum(precisions) / len(precisions)

    return by_query(loss, *pairs)


def blackbox_ap_slopes(*pairs, interpolation=4.0, margin=0.02):  # arXiv 1912.03500
    """dL_q/ds, [queries, gallery], as the method defines it for the mean over all valid queries."""
    query_labels, _, gallery_labels, _, self_index = pairs
    in_gallery = any(row >= 0 for row in self_index)
    own = 1 if in_gallery else 0
    asked = list(gallery_labels if in_gallery else query_labels)
    valid = sum(list(gallery_labels).count(label) > own for label in asked)
    interpolation /= max(valid, 1)
    slopes = []
    for s, positives, negatives in each_query(*pairs):
        slopes.append([0.0] * len(s))
        if not positives:
            continue
        s = with_margin(s, positives, negatives, margin)
        r = hard_ranks(s, list(s))
        # L = 1 - mean of r+_i / r_i, whose r+ is taken as a constant: dL/dr_i, 0 for the negatives
        g = {i: (1 + sum(s[j] > s[i] for j in positives)) / len(s) / r[i] ** 2 for i in positives}
        moved = {i: s[i] + interpolation * g.get(i, 0.0) / len(positives) for i in s}
        for i, r_moved in hard_ranks(moved, list(moved)).items():
            slopes[-1][i] = -(r[i] - r_moved) / interpolation
    return np.array(slopes)


def recall_at_k_loss(
    *pairs, ks=(1, 2, 4, 8, 16), temperature=0.01, k_temperatures=(1, 2, 4, 8, 16), count_query=False
):
    """1 - the mean over k of the smooth recall@k of Patel et al., arXiv 2108.11179; which are valid."""

    def loss(s, positives, negatives):
        own = [j for j in range(len(s)) if j not in positives + negatives] if count_query else []
        r = [1 + soft_rank(i, positives + negatives + own, s, temperature) for i in positives]
        recalls = []
        for k, k_temperature in zip(ks, k_temperatures, strict=True):
            found = sum(sigmoid((k - r_i) / k_temperature) for r_i in r)
            recalls.append(min(found, k) / min(k, len(positives)))
        return 1 - sum(recalls) / len(recalls)

    return by_query(loss, *pairs)


def roadmap_step(t, temperature, rho, delta):
    """H of arXiv 2110.01445: a sigmoid up to 0, 1/2 above it up to delta, and a line beyond."""
    if t <= 0:
        return sigmoid(t / temperature)
    if t <= delta:
        return sigmoid(t / temperature) + 0.5
    return rho * (t - delta) + sigmoid(delta / temperature) + 0.5


def sup_ap(
    *pairs,
    temperature=0.01,
    rho=100.0,
    delta=0.05,
    calibration_weight=0.5,
    positive_margin=0.9,
    negative_margin=0.6,
    include_self=False,
):  # Ramzi et al., arXiv 2110.01445
    """(1 - calibration_weight) L_SupAP + calibration_weight L_calibration, and which queries are valid."""

    def loss(s, positives, negatives):
        terms = []
        for i in positives:
            positives_before = sum(s[k] > s[i] for k in positives)
            negatives_before = sum(roadmap_step(s[j] - s[i], temperature, rho, delta) for j in negatives)
            terms.append(1 - (1 + positives_before) / (1 + positives_before + negatives_before))
        return sum(terms) / len(terms)

    def calibration(s, positives, negatives):
        too_far = [max(positive_margin - s[i], 0) for i in positives]
        too_near = [max(s[j] - negative_margin, 0) for j in negatives]
        return sum(too_far) / len(too_far) + sum(too_near) / max(len(too_near), 1)

    ranking, valid = by_query(loss, *pairs, include_self=include_self)
    return (1 - calibration_weight) * ranking + calibration_weight * by_query(calibration, *pairs)[0], valid


def hierarchical_ap(
    query_labels,
    queries,
    gallery_labels,
    gallery,
    self_index,
    temperature=0.01,
    rho=100.0,
    delta=0.05,
    alpha=1.0,
    labels=(),
    categories=(),
):  # Ramzi et al., arXiv 2207.04873
    """1 - H-AP with the upper bound of the ranks, and which queries are valid."""
    coarser = dict(zip(labels, ([c] if isinstance(c, int) else list(c) for c in categories)))

    def shared(a, b):
        paths = [[*reversed(coarser.get(int(label), [])), int(label)] for label in (a, b)]
        level = 0
        while level < len(paths[0]) and paths[0][level] == paths[1][level]:
            level += 1
        return level, len(paths[0])

    losses, valid = [], []
    similarities = each_query(query_labels, queries, gallery_labels, gallery, self_index)
    for q, (s, _, _) in enumerate(similarities):
        others = [j for j in range(len(s)) if j != self_index[q]]
        level = {j: shared(query_labels[q], gallery_labels[j])[0] for j in others}
        levels = shared(query_labels[q], query_labels[q])[1]
        rel = {j: (level[j] / levels) ** alpha / list(level.values()).count(level[j]) for j in others}
        rel = {j: rel[j] if level[j] else 0.0 for j in others}
        relevant = [j for j in others if level[j]]
        total = 0.0
        for i in relevant:
            h_rank = rel[i] + sum(min(rel[i], rel[j]) for j in others if j != i and s[j] > s[i])
            rank = 1 + sum(
                roadmap_step(s[j] - s[i], temperature, rho, delta) for j in others if level[j] < level[i]
            )
            rank += sum(s[j] > s[i] for j in others if level[j] >= level[i])
            total += h_rank / rank
        valid.append(bool(relevant))
        losses.append(1 - total / sum(rel.values()) if relevant else 0.0)
    return np.array(losses), np.array(valid)


def rll_slopes(
    *pairs,
    margin=0.4,
    alpha=1.2,
    negative_temperature=10.0,
    positive_temperature=0.0,
    negative_weight=0.5,
):
    """Of L_RLL (eq. 13) with the weights of eq. 9 and 10 as constants."""
    slopes = []
    for s, positives, negatives in each_query(*pairs):
        slopes.append([0.0] * len(s))
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        far = {j: d[j] - (alpha - margin) for j in positives if d[j] > alpha - margin}
        near = {j: alpha - d[j] for j in negatives if positives and d[j] < alpha}
        for mined, temperature, share in (
            (far, positive_temperature, 1 - negative_weight),
            (near, negative_temperature, -negative_weight),
        ):
            w = {j: math.exp(temperature * violation) for j, violation in mined.items()}
            for j in mined:
                slopes[-1][j] = share * w[j] / sum(w.values()) * -1 / d[j]  # dd/ds = -1/d
    return np.array(slopes)
