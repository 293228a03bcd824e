"""Sums of exponentials that do not overflow, with their derivative."""

import tensorflow as tf


def log_sum_exp(exponents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """log(sum_j exp(x_j)) of each row, and its derivative with respect to each x_j.

    Args:
        exponents: `[rows, columns]` x, -inf for what is left out.

    Returns:
        `[rows, 1]`, -inf where all is left out, and `[rows, columns]` shares of the sum, of which there
        are then none.

    >>> value, shares = log_sum_exp(tf.constant([[1000.0, 1000.0, -float("inf")]]))
    >>> value.numpy().round(2).tolist(), shares.numpy().tolist()
    ([[1000.6900024414062]], [[0.5, 0.5, 0.0]])
    """
    largest = tf.reduce_max(exponents, axis=1, keepdims=True)
    largest = tf.maximum(largest, exponents.dtype.min)
    terms = tf.exp(exponents - largest)
    total = tf.reduce_sum(terms, axis=1, keepdims=True)
    return largest + tf.math.log(total), terms * tf.math.reciprocal_no_nan(total)
