"""What the twins share: masks, and sums over them."""

import numpy as np
import tensorflow as tf

from tests import reference


def whole(query_labels, queries, gallery_labels, gallery, self_index, include_self=False):
    """`[queries, gallery]` similarities, positives and negatives (bool), and which queries are valid."""
    own = tf.range(tf.size(gallery_labels)) == self_index[:, None]
    same = gallery_labels == query_labels[:, None]
    valid = tf.reduce_any(same & ~own, axis=1)
    positives = (same if include_self else same & ~own) & valid[:, None]
    return tf.matmul(queries, gallery, transpose_b=True), positives, ~same, valid


def total(values, mask, axis=1):
    return tf.reduce_sum(tf.where(mask, values, tf.zeros_like(values)), axis)


def mean(values, mask):
    """Over the columns in the mask, 0 where there are none."""
    return total(values, mask) / tf.maximum(number(mask), 1)


def number(mask):
    return tf.reduce_sum(tf.cast(mask, tf.float64), axis=1)


def ranks(step, s, rows):
    """`[queries, gallery]`: for each i the sum of step(s_j - s_i) over the rows j other than i."""
    others = rows[:, None, :] & ~tf.eye(s.shape[1], dtype=tf.bool)
    return total(step(s[:, None, :] - s[:, :, None]), others, axis=2)


def mean_penalty(penalty, negative_step, positive_step, *rows, include_self=False):
    """The mean over the positives of penalty(R(i, S_N), R(i, S_P))."""
    s, positives, negatives, valid = whole(*rows, include_self)
    terms = penalty(ranks(negative_step, s, negatives), ranks(positive_step, s, positives))
    return mean(terms, positives), valid


def sigmoid_step(temperature):
    return lambda x: tf.sigmoid(x / temperature)


def gradient_of_mean(slopes, valid, embeddings, constant_gallery):
    """dL/d embeddings of one batch's mean loss, from dL_q/ds, through the normalisation."""
    unit = reference.unit(embeddings)
    slopes = slopes / valid.sum()
    pull = slopes @ unit
    if not constant_gallery:
        pull = pull + slopes.T @ unit
    along = np.sum(pull * unit, axis=1, keepdims=True)
    return (pull - along * unit) / np.linalg.norm(embeddings, axis=1, keepdims=True)
