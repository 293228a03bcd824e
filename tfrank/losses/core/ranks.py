"""Soft ranks: how many negatives, or positives, rank before each positive of each query.

    R(i, S) = sum_{j in S, j != i} step(s_j - s_i)          (PNP eq. 2 and 3)

A loss on ranks is the mean, over the positives of a query, of a penalty of these counts. The kernel
differentiates the penalty with respect to the counts as soon as the steps of a positive are computed. dL/ds
of a gallery entry is that derivative times the slope of its step. The elementwise work is proportional to
the size of the gallery x the number of positives, summed over queries. `grid_ranks` needs less for large
classes.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from tfrank.losses.core.rows import Block, Kernel

# Maps differences s_j - s_i to how much j counts as ranked before i, and the derivative of that.
Step = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

# Rows with at most this many positives count them in matrices of this width.
FEW_POSITIVES = 64
# The slope of a sigmoid is no product of infinity and 0.
LARGEST_ODDS = {tf.float32: 1e38, tf.float64: 1e307}


def sigmoid_step(temperature: float | tf.Tensor) -> Step:
    """The step sigmoid(x / temperature): PNP eq. 3, Smooth-AP eq. 6.

    Value and slope are exact but for rounding, relative to themselves, down to 2e-38 (float64: 1e-307).
    """

    def step(x):
        # (1 - value) / value, which keeps both tails: 1 - value would lose the upper one.
        odds = tf.exp(x * (-1 / temperature))
        value = 1 / (1 + odds)
        return value, tf.minimum(odds, LARGEST_ODDS[x.dtype]) * value * value * (1 / temperature)

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
        gallery = block.s.shape[1] or tf.shape(block.s)[1]
        if isinstance(gallery, int) and gallery <= FEW_POSITIVES:
            return walk(block, gallery)
        widths = [FEW_POSITIVES, gallery]
        if not isinstance(gallery, int) or gallery > 4 * FEW_POSITIVES:
            widths.insert(1, tf.maximum(gallery // 4, FEW_POSITIVES))
        too_narrow = [tf.cast(block.most_positives > width, tf.int32) for width in widths[:-1]]
        return tf.switch_case(sum(too_narrow), [functools.partial(walk, block, width) for width in widths])

    def walk(block: Block, width):
        """Counts for one positive after the other, of rows with at most `width` positives."""
        columns, exists = block.positive_columns(width)
        scores = tf.gather(block.s, columns, axis=1, batch_dims=1)
        place, rows = tf.range(width), tf.range(tf.shape(columns)[0])
        zero, no_slope = tf.zeros_like(block.s), tf.zeros_like(scores)

        def visit(p, losses, slopes, of_positives):
            score = scores[:, p, None]
            before, slope = negative(block.s - score)
            counts = [tf.reduce_sum(tf.where(block.negative_mask, before, zero), axis=1)]
            if positive:
                others = exists & (place != p)
                before, positive_slope = positive(scores - score)
                counts.append(tf.reduce_sum(tf.where(others, before, no_slope), axis=1))

            with tf.GradientTape() as tape:
                tape.watch(counts)
                loss = tf.where(exists[:, p], penalty(*counts) / block.positives, tf.zeros_like(counts[0]))
            rates = tape.gradient(loss, counts)

            slope = tf.where(block.negative_mask, rates[0][:, None] * slope, zero)
            # Each step depends on s_j - s_i, so s_i gets minus the sum of the slopes of all s_j.
            own = -tf.reduce_sum(slope, axis=1)
            if positive:
                positive_slope = tf.where(others, rates[1][:, None] * positive_slope, no_slope)
                own -= tf.reduce_sum(positive_slope, axis=1)
                of_positives += positive_slope
            of_positives = block.add_at(of_positives, 0 * rows + p, own)
            return p + 1, losses + loss, slopes + slope, of_positives

        state = tf.while_loop(lambda p, *_: p < block.most_positives, visit, [0, zero[:, 0], zero, no_slope])
        _, losses, slopes, of_positives = state
        return losses, block.add_at(slopes, columns, of_positives)

    return kernel
