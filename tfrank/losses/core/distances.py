"""Euclidean distances between unit vectors, from their similarities."""

import tensorflow as tf


def unit_distances(s: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns d^2, d and dd/ds for d = |q - x| = sqrt(2 - 2 s), each with the shape of s.

    dd/ds is -1/d; at distance 0 it is set to 0.

    >>> squared, distance, slope = unit_distances(tf.constant([1.0, 0.5, -1.0]))
    >>> squared.numpy().tolist(), distance.numpy().tolist(), slope.numpy().tolist()
    ([0.0, 1.0, 4.0], [0.0, 1.0, 2.0], [0.0, -1.0, -0.5])
    """
    squared = tf.maximum(2 - 2 * s, 0)
    slope = tf.where(squared > 0, -tf.math.rsqrt(squared), tf.zeros_like(squared))
    return squared, tf.sqrt(squared), slope
