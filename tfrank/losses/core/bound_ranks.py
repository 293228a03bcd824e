"""Ranks by SupAP's upper bound of the step function, for many positives at once.

    H(x) = sigmoid(min(x, delta) / T) + [x > 0] / 2 + rho [x - delta]_+

`grid_ranks` sums sigmoid(x / T). The rest is nothing for entries below a positive, 1/2 for those above it,
and for those more than delta above it also

    rho (x - delta) + sigmoid(delta / T) - 1 + e^(-x / T) - e^(-2 x / T) + e^(-3 x / T)

whose series for the sigmoid is off by less than e^(-4 delta / T), 2e-7 from `LEAST_DELTA` on. With
x = s_j - s_i that is a sum of products of a term of s_j and a term of s_i. So with the positives sorted, the
sums over all entries beyond each positive are cumulative sums of the terms of the entries.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfrank.losses.core.grid_ranks import GridRanks, where_it_pays
from tfrank.losses.core.hard_ranks import FROM_POSITIVES, SortedScores, number_above, sums_by_place
from tfrank.losses.core.rows import Block

# In temperatures.
LEAST_DELTA = 3.9
POWERS = (1, 2, 3)


def bound_where_it_pays(
    block: Block,
    temperature: tf.Tensor,
    delta: tf.Tensor,
    masks: Sequence[tf.Tensor],
    at_once: Callable,
    exact: Callable,
):
    """The losses and slopes of a block by `at_once`, where that takes less time, else those of `exact()`.

    Args:
        block, temperature, delta: see `BoundRanks`.
        masks: `[rows, gallery]` bool, sets of entries to count, none of them among its positives.
        at_once: maps a grid of each set, and `columns, exists` of the positives, to the losses, `[rows]`, and
            the two outputs of `BoundRanks.slopes`: the sum over the sets, and a list.
        exact: a function without arguments.
    """

    def on_grid():
        gallery = tf.shape(block.s)[1]
        widths = [tf.maximum(gallery // 4, FROM_POSITIVES), gallery]
        grids = [GridRanks(block, temperature, [mask], [False]) for mask in masks]
        few = block.most_positives <= widths[0]
        of_widths = [lambda width=width: at_once(grids, *block.positive_columns(width)) for width in widths]
        losses, slopes, rates = tf.cond(few, *of_widths)
        return losses, slopes + sum(grid.slopes([rate]) for grid, rate in zip(grids, rates))

    return where_it_pays(block, temperature, on_grid, exact, possible=delta >= LEAST_DELTA * temperature)


class BoundRanks:
    """The counts by H of entries before each positive of a block, and their gradient.

    Args:
        block: of similarities, float32.
        grid: counts of the entries of `mask`, none of which is one of the positives.
        temperature, rho, delta: scalars; the temperature is one for the grid, and delta at least
            `LEAST_DELTA` temperatures.
        mask: `[rows, gallery]` bool, the entries that are counted.
        columns, exists: `[rows, width]`, the positives of each row and which of these exist.

    Attributes:
        counts: `[rows, width]`, at each positive.
    """

    def __init__(
        self,
        block: Block,
        grid: GridRanks,
        temperature: tf.Tensor,
        rho: tf.Tensor,
        delta: tf.Tensor,
        mask: tf.Tensor,
        columns: tf.Tensor,
        exists: tf.Tensor,
    ):
        s = block.s
        self._block, self._mask, self._exists, self._columns = block, mask, exists, columns
        # Below all positives, or above one of them.
        self._size = tf.shape(columns)[1] + 1
        scores = tf.gather(s, columns, axis=1, batch_dims=1)
        ordered = SortedScores(scores, exists)
        # How many positives are below each positive, each entry, and each entry lowered by delta.
        self._places, self._below, self._beyond = (ordered.below(x)[0] for x in (scores, s, s - delta))
        # In float64, where no exponential leaves the range and sums of thousands keep their digits.
        rho, delta, scale = (tf.cast(x, tf.float64) for x in (rho, delta, 1 / temperature))
        entry, score = tf.cast(s, tf.float64)[..., None] - delta, tf.cast(scores, tf.float64)[..., None]
        one, of_line, k = tf.ones_like(score), rho * tf.ones_like(score), tf.constant(POWERS, tf.float64)
        series = -((-tf.exp(-delta * scale)) ** k) * tf.exp(k * scale * score)
        self._terms = tf.concat([tf.ones_like(entry), entry, tf.exp(-k * scale * entry)], axis=2)
        of_value = tf.concat([-rho * score - tf.sigmoid(-delta * scale) * one, of_line, series], axis=2)
        self._of_slope = tf.concat([of_line, 0 * one, -k * scale * series], axis=2)
        sums = sums_by_place(self._terms, self._beyond, mask, self._size)
        sums = tf.cumsum(sums, axis=1, reverse=True, exclusive=True)
        sums = tf.gather(sums, self._places, axis=1, batch_dims=1)
        more = tf.reduce_sum(of_value * sums, axis=2)
        self._fall = tf.reduce_sum(self._of_slope * sums, axis=2)
        counts = tf.gather(grid.counts[0], columns, axis=1, batch_dims=1)
        self.counts = counts + self.number_above(mask) / 2 + tf.cast(more, s.dtype)

    def number_above(self, mask: tf.Tensor) -> tf.Tensor:
        """`[rows, width]`: how many entries of a mask, `[rows, gallery]`, are above each positive."""
        numbers = number_above(self._below, mask, self._size)
        return tf.cast(tf.gather(numbers, self._places, axis=1, batch_dims=1), self._block.s.dtype)

    def slopes(self, rates: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """dL/ds, `[rows, gallery]`, without what the grid adds to it; and the rates that the grid takes.

        Args:
            rates: dL/dcount, `[rows, width]`, 0 for positives that do not exist.
        """
        of_scores = tf.cast(rates, tf.float64)
        below = of_scores[..., None] * self._of_slope
        below = sums_by_place(below, self._places, self._exists, self._size)
        below = tf.gather(tf.cumsum(below, axis=1, exclusive=True), self._beyond, axis=1, batch_dims=1)
        of_entries = tf.cast(tf.reduce_sum(below * self._terms, axis=2), rates.dtype)
        of_entries = tf.where(self._mask, of_entries, tf.zeros_like(of_entries))
        falls = tf.cast(of_scores * self._fall, rates.dtype)
        return of_entries - self._at_columns(falls), self._at_columns(rates)

    def _at_columns(self, values):
        """`[rows, gallery]`: `values`, `[rows, width]`, of the positives that exist, at their columns."""
        values = tf.where(self._exists, values, tf.zeros_like(values))
        return self._block.add_at(tf.zeros_like(self._block.s), self._columns, values)
