"""Soft ranks: how many negatives, or positives, stand before each positive of each query.

    R(i, S) = sum_{j in S, j != i} step(s_j - s_i)          (PNP eq. 2 and 3)

Losses on ranks are means of a penalty of these counts over the positives of a query. While a
positive's steps are at hand, the penalty is differentiated with respect to its counts, and dL/ds of
every gallery entry is that number times the step's slope. Elementwise work is in proportion to
gallery x the sum over queries of their positives.
"""

from collections.abc import Callable

import tensorflow as tf

from tfrank.losses.core.rows import Block, Kernel

# From differences s_j - s_i to how much j counts as standing before i, and the derivative of that.
Step = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def sigmoid_step(temperature: float | tf.Tensor) -> Step:
    """sigmoid(x / temperature): PNP eq. 3, Smooth-AP eq. 6."""

    def step(x):
        # The sigmoid by way of tanh takes a third less time, and is off by at most 6e-8 in float32.
        value = 0.5 + 0.5 * tf.tanh(x * (0.5 / temperature))
        return value, value * (1 - value) * (1 / temperature)

    return step


def hard_step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """1 where x > 0, else 0; without a slope."""
    return tf.cast(x > 0, x.dtype), tf.zeros_like(x)


def penalty_kernel(penalty: Callable[..., tf.Tensor], negative: Step, positive: Step | None = None) -> Kernel:
    """L = 1/|P| sum_{i in P} penalty(R(i, S_N)), or penalty(R(i, S_N), R(i, S_P)).

    Args:
        penalty: elementwise function of the counts, `[rows]` -> `[rows]`.
        negative: the step by which negatives are counted.
        positive: the step by which other positives are counted, for a penalty of two counts.
    """

    def kernel(block: Block):
        zero = tf.zeros_like(block.s)

        def visit(i, exists, losses, slopes):
            difference = block.s - block.at(i)
            before, slope = negative(difference)
            counts = [tf.reduce_sum(tf.where(block.same, zero, before), axis=1)]
            if positive:
                others = block.fellow & (block.columns != i[:, None])
                before, positive_slope = positive(difference)
                counts.append(tf.reduce_sum(tf.where(others, before, zero), axis=1))

            with tf.GradientTape() as tape:
                tape.watch(counts)
                loss = tf.where(exists, penalty(*counts) / block.positives, tf.zeros_like(counts[0]))
            rates = tape.gradient(loss, counts)

            slope = tf.where(block.same, zero, rates[0][:, None] * slope)
            if positive:
                slope = tf.where(others, rates[1][:, None] * positive_slope, slope)
            # Every s_j pulls on s_i with the opposite sign of its own pull.
            slopes = block.add_at(slopes + slope, i, -tf.reduce_sum(slope, axis=1))
            return losses + loss, slopes

        return block.walk(visit, (zero[:, 0], zero))

    return kernel
