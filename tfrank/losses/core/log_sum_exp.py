"""Log-sum-exp without overflow, with its derivative."""

import tensorflow as tf


def log_sum_exp(exponents: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log(sum_j exp(x_j)) of each row, and its derivative with respect to each x_j.

    Args:
        exponents: `[rows, columns]` x; -inf masks an entry.

    Returns:
        The log-sum, `[rows, 1]`, -inf if every entry is masked, and the softmax, `[rows, columns]`, 0 for
        masked entries.

    >>> value, shares = log_sum_exp(tf.constant([[1000.0, 1000.0, -float("inf")]]))
    >>> value.numpy().round(2).tolist(), shares.numpy().tolist()
    ([[1000.6900024414062]], [[0.5, 0.5, 0.0]])
    """
    largest = tf.reduce_max(exponents, axis=1, keepdims=True)
    largest = tf.maximum(largest, exponents.dtype.min)
    terms = tf.exp(exponents - largest)
    total = tf.reduce_sum(terms, axis=1, keepdims=True)
    return largest + tf.math.log(total), terms * tf.math.reciprocal_no_nan(total)
