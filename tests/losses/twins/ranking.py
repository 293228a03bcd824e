"""Of the losses of rankings."""

import math

import numpy as np
import tensorflow as tf

from tests import reference
from tests.losses.twins.common import mean, mean_penalty, number, ranks, sigmoid_step, total, whole


def pnp(*rows, variant="dq", alpha=4.0, b=4.0, temperature=0.01, include_self=False):
    penalty = {
        "o": lambda R, _: R,
        "iu": lambda R, _: (1 + R) * tf.math.log(1 + R),
        "ib": lambda R, _: (b * R - tf.math.log(1 + b * R)) / b**2,
        "ds": lambda R, _: tf.math.log(1 + R),
        "dq": lambda R, _: 1 - 1 / (1 + R) ** alpha,
    }[variant]
    step = sigmoid_step(temperature)
    return mean_penalty(penalty, step, step, *rows, include_self=include_self)


def one_minus_precision(negatives_before, positives_before):
    return 1 - (1 + positives_before) / (1 + positives_before + negatives_before)


def smooth_ap(*rows, temperature=0.01, include_self=False):
    step = sigmoid_step(temperature)
    return mean_penalty(one_minus_precision, step, step, *rows, include_self=include_self)


def sup_ap(
    *rows,
    temperature=0.01,
    rho=100.0,
    delta=0.05,
    calibration_weight=0.5,
    positive_margin=0.9,
    negative_margin=0.6,
    include_self=False,
):
    def upper_bound(x):
        line = rho * (x - delta) + tf.sigmoid(tf.constant(delta / temperature, x.dtype)) + 0.5
        return tf.where(x > delta, line, tf.sigmoid(x / temperature) + 0.5 * hard(x))

    def hard(x):
        return tf.cast(x > 0, x.dtype)

    ranking, valid = mean_penalty(one_minus_precision, upper_bound, hard, *rows, include_self=include_self)
    s, positives, negatives, _ = whole(*rows, include_self)
    too_far, too_near = tf.maximum(positive_margin - s, 0), tf.maximum(s - negative_margin, 0)
    calibration = mean(too_far, positives) + mean(too_near, negatives)
    losses = (1 - calibration_weight) * ranking + calibration_weight * calibration
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def quantized_ap(values, centers, width, positives, negatives, tie_aware=False):
    """1 - sum over bins of precision times recall, from `[queries, gallery, bins]` soft assignments."""
    values = values[:, :, None]
    delta = tf.nn.relu(1 - tf.abs(values - tf.constant(centers)) / width)
    h_positive = total(delta, positives[:, :, None])
    h = total(delta, (positives | negatives)[:, :, None])
    H_positive, H = tf.cumsum(h_positive, axis=1), tf.cumsum(h, axis=1)
    if tie_aware:
        precision = (1 + 2 * H_positive - h_positive) / (1 + 2 * H - h)
    else:
        precision = tf.math.divide_no_nan(H_positive, H)
    return 1 - tf.reduce_sum(precision * h_positive, axis=1) / tf.maximum(number(positives), 1)


def map_q(*rows, num_bins=20, tie_aware=False, include_self=False):
    s, positives, negatives, valid = whole(*rows, include_self)
    centers = np.linspace(1, -1, num_bins)
    s = tf.clip_by_value(s, -1, 1)
    losses = quantized_ap(s, centers, 2 / (num_bins - 1), positives, negatives, tie_aware)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def fast_ap(*rows, num_bins=10):
    s, positives, negatives, valid = whole(*rows)
    squared_distance = tf.clip_by_value(2 - 2 * s, 0, 4)
    centers = np.linspace(0, 4, num_bins + 1)
    losses = quantized_ap(squared_distance, centers, 4 / num_bins, positives, negatives)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def rll(
    query_labels,
    queries,
    gallery_labels,
    gallery,
    self_index,
    margin=0.4,
    alpha=1.2,
    negative_temperature=10.0,
    positive_temperature=0.0,
    negative_weight=0.5,
    constant_gallery=True,
):
    if constant_gallery:
        gallery = tf.stop_gradient(gallery)
    s, positives, negatives, valid = whole(query_labels, queries, gallery_labels, gallery, self_index)
    # Of a row and itself the root has no slope; neither is a candidate.
    candidates = positives | negatives
    distance = tf.sqrt(tf.where(candidates, 2 - 2 * s, tf.ones_like(s)))

    def weighted(violation, rows, temperature):
        mined = rows & (violation > 0)
        weights = tf.stop_gradient(tf.exp(temperature * violation))
        return tf.math.divide_no_nan(total(weights * violation, mined), total(weights, mined))

    far = weighted(distance - (alpha - margin), positives, positive_temperature)
    near = weighted(alpha - distance, negatives, negative_temperature)
    losses = (1 - negative_weight) * far + negative_weight * near
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def blackbox_ap(*rows, interpolation=4.0, margin=0.02):
    """The value and the slopes of the oracle, whose ranks are whole: autodiff only chains them."""
    arrays = [column.numpy() for column in rows]
    options = {"interpolation": interpolation, "margin": margin}
    losses, valid = reference.ranking.blackbox_ap(*arrays, **options)
    s = whole(*rows)[0]
    chained = tf.reduce_sum(reference.ranking.blackbox_ap_slopes(*arrays, **options) * s, axis=1)
    return losses + chained - tf.stop_gradient(chained), tf.constant(valid)


def recall_at_k(*rows, ks=(1, 2, 4, 8, 16), temperature=0.01, k_temperatures=(1.0, 2.0, 4.0, 8.0, 16.0)):
    s, positives, negatives, valid = whole(*rows)
    rank = 1 + ranks(sigmoid_step(temperature), s, positives | negatives)
    recalls = []
    for k, k_temperature in zip(ks, k_temperatures):
        found = total(tf.sigmoid((k - rank) / k_temperature), positives)
        recalls.append(tf.minimum(found, k) / tf.maximum(tf.minimum(number(positives), k), 1))
    losses = 1 - tf.add_n(recalls) / len(ks)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


# Of losses whose gradient is not the slope of their value: dL_q/ds `[queries, gallery]`, in plain loops.


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
    for s, positives, negatives in reference.each_query(*pairs):
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
