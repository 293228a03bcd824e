"""Of the losses of pairs."""

import math

import numpy as np
import tensorflow as tf

from tests import reference
from tests.losses.twins.common import mean, number, total, whole


def with_negatives(losses, valid, negatives):
    """Of a loss that needs a negative too: 0, and not valid, where there is none."""
    valid &= tf.reduce_any(negatives, axis=1)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def multi_similarity(*rows, alpha=2.0, beta=50.0, threshold=0.5, epsilon=0.1):
    s, positives, negatives, valid = whole(*rows)
    nearest = tf.reduce_max(tf.where(negatives, s, -3), axis=1, keepdims=True)
    farthest = tf.reduce_min(tf.where(positives, s, 3), axis=1, keepdims=True)
    pull = total(tf.exp(-alpha * (s - threshold)), positives & (s < nearest + epsilon))
    push = total(tf.exp(beta * (s - threshold)), negatives & (s > farthest - epsilon))
    losses = tf.math.log1p(pull) / alpha + tf.math.log1p(push) / beta
    return with_negatives(losses, valid, negatives)


def circle(*rows, margin=0.4, gamma=80.0):
    s, positives, negatives, valid = whole(*rows)
    a_p = tf.stop_gradient(tf.nn.relu(1 + margin - s))
    a_n = tf.stop_gradient(tf.nn.relu(s + margin))
    pull = total(tf.exp(-gamma * a_p * (s - (1 - margin))), positives)
    push = total(tf.exp(gamma * a_n * (s - margin)), negatives)
    return with_negatives(tf.math.log1p(push * pull), valid, negatives)


def margin(*rows, margin=0.2, boundary=1.2, **draw):
    """With the shares of the oracle: autodiff sees the distances only."""
    s, positives, negatives, valid = whole(*rows)
    shares = tf.constant(reference.pairs.negative_shares(*(column.numpy() for column in rows), **draw))
    # Of a row and itself the root has no slope.
    distance = tf.sqrt(tf.where(positives | negatives, 2 - 2 * s, tf.ones_like(s)))
    far = mean(tf.nn.relu(margin + distance - boundary), positives)
    losses = far + total(shares * tf.nn.relu(margin + boundary - distance), negatives)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def histogram(*rows, num_bins=201):
    s, positives, negatives, valid = whole(*rows)
    valid &= tf.reduce_any(negatives, axis=1)
    positives &= valid[:, None]
    nodes = tf.constant(np.linspace(-1, 1, num_bins))
    delta = tf.nn.relu(1 - tf.abs(s[:, :, None] - nodes) * (num_bins - 1) / 2)
    h_positive = tf.reduce_sum(total(delta, positives[:, :, None]), axis=0)
    h_positive = tf.math.divide_no_nan(h_positive, tf.reduce_sum(number(positives)))
    h_negative = total(delta, negatives[:, :, None]) / tf.maximum(number(negatives), 1)[:, None]
    losses = tf.reduce_sum(h_negative * tf.cumsum(h_positive), axis=1)
    return with_negatives(losses, valid, negatives)


# Of losses whose gradient is not the slope of their value: dL_q/ds `[queries, gallery]`, in plain loops.


def circle_slopes(*pairs, margin=0.4, gamma=80.0):
    """Of L_circle with the weights a as constants."""
    slopes = []
    for s, positives, negatives in reference.each_query(*pairs):
        slopes.append([0.0] * len(s))
        if not (positives and negatives):
            continue
        a, pull, push = reference.pairs.circle_terms(s, positives, negatives, margin, gamma)
        product = sum(pull.values()) * sum(push.values())
        # d log(1 + A B) / dA = B / (1 + A B), dA / ds_p = -gamma a_p times its exponential
        for p in positives:
            slopes[-1][p] = product / (1 + product) * -gamma * a[p] * pull[p] / sum(pull.values())
        for n in negatives:
            slopes[-1][n] = product / (1 + product) * gamma * a[n] * push[n] / sum(push.values())
    return np.array(slopes)


def margin_slopes(*pairs, margin=0.2, boundary=1.2, **draw):
    """Of L_margin with what is drawn, or the probabilities, as constants."""
    shares, slopes = reference.pairs.negative_shares(*pairs, **draw), []
    for q, (s, positives, negatives) in enumerate(reference.each_query(*pairs)):
        slopes.append([0.0] * len(s))
        d = [math.sqrt(max(2 - 2 * s_j, 0)) for s_j in s]
        for p in positives:
            if margin + d[p] - boundary > 0:
                slopes[-1][p] = 1 / len(positives) * -1 / d[p]  # dd/ds = -1/d
        for n in negatives if positives else []:
            if margin + boundary - d[n] > 0 and shares[q, n]:
                slopes[-1][n] = -shares[q, n] * -1 / d[n]
    return np.array(slopes)
