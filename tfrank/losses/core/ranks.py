"""Soft ranks: how many negatives, or positives, rank before each positive of each query.

    R(i, S) = sum_{j in S, j != i} step(s_j - s_i)          (PNP eq. 2 and 3)

A loss on ranks is the mean, over the positives of a query, of a penalty of these counts. The kernel
differentiates the penalty with respect to the counts as soon as the steps of a positive are computed. dL/ds
of a gallery entry is that derivative times the slope of its step. The elementwise work is proportional to
the size of the gallery x the number of positives, summed over queries.
"""

from collections.abc import Callable

import tensorflow as tf

from tfrank.losses.core.rows import Block, Kernel

# Maps differences s_j - s_i to how much j counts as ranked before i, and the derivative of that.
Step = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def sigmoid_step(temperature: float | tf.Tensor) -> Step:
    """The step sigmoid(x / temperature): PNP eq. 3, Smooth-AP eq. 6."""

    def step(x):
        # The sigmoid computed by tanh takes a third less time; its error is at most 6e-8 in float32.
        value = 0.5 + 0.5 * tf.tanh(x * (0.5 / temperature))
        return value, value * (1 - value) * (1 / temperature)

    return step


def hard_step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The step that is 1 where x > 0, else 0; its slope is 0."""
    return tf.cast(x > 0, x.dtype), tf.zeros_like(x)


def penalty_kernel(penalty: Callable[..., tf.Tensor], negative: Step, positive: Step | None = None) -> Kernel:
    """The kernel of L = 1/|P| sum_{i in P} penalty(R(i, S_N)), or penalty(R(i, S_N), R(i, S_P)).

    Args:
        penalty: elementwise function of the counts, `[rows]` -> `[rows]`.
        negative: the step that counts negatives.
        positive: the step that counts other positives, for a penalty of two counts.
    """

    def kernel(block: Block):
        zero = tf.zeros_like(block.s)

        def visit(i, exists, losses, slopes):
            difference = block.s - block.at(i)
            before, slope = negative(difference)
            counts = [tf.reduce_sum(tf.where(block.negative_mask, before, zero), axis=1)]
            if positive:
                others = block.positive_mask & (block.columns != i[:, None])
                before, positive_slope = positive(difference)
                counts.append(tf.reduce_sum(tf.where(others, before, zero), axis=1))

            with tf.GradientTape() as tape:
                tape.watch(counts)
                loss = tf.where(exists, penalty(*counts) / block.positives, tf.zeros_like(counts[0]))
            rates = tape.gradient(loss, counts)

            slope = tf.where(block.negative_mask, rates[0][:, None] * slope, zero)
            if positive:
                slope = tf.where(others, rates[1][:, None] * positive_slope, slope)
            # Each step depends on s_j - s_i, so s_i gets minus the sum of the slopes of all s_j.
            slopes = block.add_at(slopes + slope, i, -tf.reduce_sum(slope, axis=1))
            return losses + loss, slopes

        return block.loop_over_positives(visit, (zero[:, 0], zero))

    return kernel
