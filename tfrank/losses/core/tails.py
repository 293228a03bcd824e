"""Functions that are 0 in the limit, computed without differences that round to 0 long before.

The error of each is that of rounding relative to its value, however small. The same holds for the gradients.
"""

import tensorflow as tf

from tfrank.losses.core.log_sum_exp import log_sum_exp

# Stands for log(0). Finite, as autodiff turns infinities into NaN.
LOG_OF_ZERO = -1e30


def x_minus_log1p(x: tf.Tensor) -> tf.Tensor:
    """x - log(1 + x), elementwise, for x of at least 0: x^2 / 2 for small x.

        x - log(1 + x) = r (x - 2 r^2 (1/3 + r^2 / 5 + r^4 / 7 + ...)),     r = x / (2 + x)

    >>> f"{float(x_minus_log1p(tf.constant(1e-4))):.4e}"
    '4.9997e-09'
    """
    # The series converges quickly where the difference cancels.
    near = tf.minimum(x, 0.5)
    r = near / (2 + near)
    series = tf.zeros_like(r)
    for k in range(25, 1, -2):
        series = series * r * r + 1 / k
    return tf.where(x < 0.5, r * (near - 2 * r * r * series), x - tf.math.log1p(x))


def log_of_one_and_sum(exponents: tf.Tensor, axis: int) -> tf.Tensor:
    """log(1 + sum of exp(exponents)) along an axis; `LOG_OF_ZERO` masks an entry.

    >>> f"{float(log_of_one_and_sum(tf.constant([-20.0, LOG_OF_ZERO]), axis=0)):.4e}"
    '2.0612e-09'
    """
    return tf.math.softplus(tf.reduce_logsumexp(exponents, axis=axis))


def class_entropy(logits: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
    """-log(exp(x_y) / sum_z exp(x_z)) of each row, `[rows]`; 0 if there is one class.

    Args:
        logits: `[rows, classes]` x, differences of at most 1e29.
        class_index: `[rows]` int32, y.

    >>> f"{float(class_entropy(tf.constant([[20.0, 0.0]]), tf.constant([0]))[0]):.4e}"
    '2.0612e-09'
    """
    own = tf.one_hot(class_index, tf.shape(logits)[1], on_value=True, off_value=False)
    own_logit = tf.reduce_sum(tf.where(own, logits, tf.zeros_like(logits)), axis=1, keepdims=True)
    others = tf.where(own, tf.constant(LOG_OF_ZERO, logits.dtype), logits - own_logit)
    return log_of_one_and_sum(others, axis=1)


def shared_entropy(
    exponents: tf.Tensor, targets: tf.Tensor, candidates: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """-sum_j t_j log(exp(x_j) / sum_k exp(x_k)) of each row, and its derivative by each x_j.

    The sum over k is over the candidates. The softmax among the targets is apart from the share of the
    others, which may be far smaller than rounding of the softmax over all.

    Args:
        exponents: `[rows, columns]` x.
        targets: `[rows, columns]` t, at least 0; each row sums to 1. In a row of zeros the loss is no number.
        candidates: `[rows, columns]` bool, which holds all columns with t > 0.

    Returns:
        The loss, `[rows]`, and the slopes, `[rows, columns]`.
    """
    wanted = targets > 0
    log_of_wanted, softmax = log_sum_exp(tf.where(wanted, exponents, -float("inf")))
    log_of_others, shares = log_sum_exp(tf.where(candidates & ~wanted, exponents, -float("inf")))
    excess = log_of_others - log_of_wanted
    losses = tf.math.softplus(excess)[:, 0] + tf.reduce_sum(
        tf.where(wanted, targets * (log_of_wanted - exponents), tf.zeros_like(exponents)), axis=1
    )
    share_of_others = tf.sigmoid(excess)
    slopes = (softmax - targets) - share_of_others * softmax
    return losses, tf.where(wanted, slopes, share_of_others * shares)
