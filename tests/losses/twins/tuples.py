"""Of the losses of pairs, triplets and tuples."""

import tensorflow as tf

from tests.losses.twins.common import mean, number, total, whole


def triplet(*rows, margin=0.2, mining="semi_hard", hardest=0):
    s, positives, negatives, _ = whole(*rows)
    valid = tf.reduce_any(positives, axis=1) & tf.reduce_any(negatives, axis=1)
    d2 = 2 - 2 * s
    d2_p, d2_n = d2[:, :, None], d2[:, None, :]
    triplets = positives[:, :, None] & negatives[:, None, :]
    far = tf.fill(tf.shape(d2), tf.constant(9.0, tf.float64))
    if mining == "semi_hard":
        farther = triplets & (d2_n > d2_p)
        nearest = tf.reduce_min(tf.where(farther, d2_n, far[:, None, :]), axis=2)
        farthest = tf.reduce_max(tf.where(negatives, d2, -far), axis=1, keepdims=True)
        mined = tf.where(tf.reduce_any(farther, axis=2), nearest, farthest)
        losses = mean(tf.maximum(d2 + margin - mined, 0), positives)
    elif mining == "hard":
        farthest = tf.reduce_max(tf.where(positives, d2, -far), axis=1)
        losses = tf.maximum(farthest + margin - tf.reduce_min(tf.where(negatives, d2, far), axis=1), 0)
    else:
        violations = total(total(tf.maximum(d2_p + margin - d2_n, 0), triplets, axis=2), positives)
        losses = tf.math.divide_no_nan(violations, number(positives) * number(negatives))
    if hardest:
        order = sorted(range(len(losses)), key=lambda q: (not valid[q], -losses[q].numpy()))
        valid = valid & tf.constant([q in order[:hardest] for q in range(len(losses))])
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def contrastive(*rows, margin=1.0):
    s, positives, negatives, valid = whole(*rows)
    distance = tf.sqrt(tf.where(positives | negatives, 2 - 2 * s, tf.ones_like(s)))
    terms = tf.where(positives, distance**2, tf.maximum(margin - distance, 0) ** 2)
    losses = mean(terms, positives | negatives)
    return tf.where(valid, losses, tf.zeros_like(losses)), valid


def n_pairs(*rows, normalize=False):
    s, positives, negatives, valid = whole(*rows)
    differences = s[:, None, :] - s[:, :, None]
    return mean(tf.math.log1p(total(tf.exp(differences), negatives[:, None, :], axis=2)), positives), valid


def lifted_structure(*rows, margin=1.0, squared=False, normalize=False):
    _, queries, _, gallery, _ = rows
    _, positives, negatives, valid = whole(*rows)
    differences = queries[:, None] - gallery
    # Of a row and itself the root has no slope; neither is a candidate.
    candidates = (positives | negatives)[:, :, None]
    distance = tf.norm(tf.where(candidates, differences, tf.ones_like(differences)), axis=2)
    near = tf.exp(margin - distance)
    sums = total(near, negatives)[:, None] + total(near, negatives, axis=0)
    J = distance + tf.math.log(tf.where(sums > 0, sums, tf.ones_like(sums)))
    J = tf.maximum(tf.where(sums > 0, J, tf.zeros_like(J)), 0)
    return mean(J**2 if squared else J, positives) / 2, valid
