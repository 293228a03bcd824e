"""Soft ranks of many positives at once: the counts of all positives of a query as one convolution.

    R(x) = sum_{j in S} sigmoid((s_j - x) / T)          at x = s_i for each positive i

R is a convolution of the similarities with a sigmoid. Each s_j is shared among the four nodes next to it of a
grid of spacing h = T / 10, by the weights of cubic interpolation. A banded product with the sigmoid between
nodes gives R at each node, and cubic interpolation gives it at each positive. Two such steps with the slope
of the sigmoid give the gradient. A row takes work proportional to the size of the gallery and of the grid,
whatever the number of positives.

Error. Cubic interpolation of f is off by at most 3/128 h^4 times its largest fourth derivative over the four
nodes. For y = x / T, that of the sigmoid is at most sigmoid(y), which grows by at most e^0.2 within two
nodes. R is interpolated in s_j and in x, and the weights of cubic interpolation have a sum of at most 1.25
without their signs, so

    |error of R| <= 2.25 x 3/128 x e^0.2 / 10^4 R < 7e-6 R

besides the rounding of float32, which is about as large. R(x) includes the half that x counts for itself if
it is one of S; that half is taken off afterwards. The error is relative to R, however small R is: more than
two blocks of nodes away, 25 T and more, the sigmoid is exp(y) or 1, and its slope exp(-|y|), to 1e-11 of
their values, and sums of exponentials need one value for each block.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfrank.common.devices import gpu
from tfrank.losses.core.ranks import penalty_kernel, sigmoid_step
from tfrank.losses.core.rows import Block, Kernel

NODES_PER_TEMPERATURE = 10
# The grid covers similarities of -1 to 1 and a few nodes more. Nodes up to REACH blocks away are summed.
NODES, BLOCK_NODES, REACH = 2048, 128, 2
# The measured cost of a row, in steps of one entry for one positive: of the grid itself, and per entry.
GRID_ENTRIES, ENTRY_POSITIVES = 160_000, 24
LEAST_TEMPERATURE = NODES_PER_TEMPERATURE / (NODES // 2 - 4)


def sigmoid_kernel(penalty: Callable[..., tf.Tensor], temperature: tf.Tensor, *, positives: bool) -> Kernel:
    """The kernel of L = 1/|P| sum_{i in P} penalty(R(i, S_N)), or penalty(R(i, S_N), R(i, S_P)).

    The counts are exact but for rounding, except where the grid takes less time: in blocks with many
    positives a row, in float32, at temperatures of at least `LEAST_TEMPERATURE`, on a CPU. There their error
    is the one above.

    Args:
        penalty: elementwise function of the counts.
        temperature: scalar of the dtype of the similarities.
        positives: whether the penalty takes the count of other positives too.
    """
    step = sigmoid_step(temperature)
    exact = penalty_kernel(penalty, step, step if positives else None)

    def kernel(block: Block):
        return where_it_pays(
            block,
            temperature,
            lambda: _on_grid(block, penalty, temperature, positives),
            lambda: exact(block),
        )

    return kernel


def where_it_pays(
    block: Block,
    temperature: tf.Tensor,
    on_grid: Callable,
    exact: Callable,
    *,
    possible: bool | tf.Tensor = True,
):
    """The result of `on_grid()` if the block is one for the grid, see `sigmoid_kernel`, else of `exact()`.

    Never that of `on_grid()` where it is not `possible`.
    """
    gallery = block.s.shape[1] or tf.shape(block.s)[1]
    # A GPU is quick at sigmoids and slow at sharing entries among nodes.
    never = isinstance(gallery, int) and not pays(gallery, gallery)
    if block.s.dtype != tf.float32 or never or gpu():
        return exact()
    # XLA knows the size of the gallery, and leaves out the grid where it never pays.
    ever = pays(gallery, gallery)
    use = ever & possible & pays(block.most_positives, gallery) & (temperature >= LEAST_TEMPERATURE)
    return tf.cond(use, on_grid, exact)


def pays(positives: int | tf.Tensor, gallery: int | tf.Tensor) -> bool | tf.Tensor:
    """Whether a row with so many positives takes less time on the grid than one positive after the other."""
    return positives > ENTRY_POSITIVES + GRID_ENTRIES // gallery


def _on_grid(block: Block, penalty, temperature, positives: bool):
    """The losses and slopes of a block."""
    masks = [block.negative_mask, block.positive_mask][: 2 if positives else 1]
    ranks = GridRanks(block, temperature, masks)
    zero = tf.zeros_like(block.s)
    with tf.GradientTape() as tape:
        tape.watch(ranks.counts)
        losses = tf.where(block.positive_mask, penalty(*ranks.counts) / block.positives[:, None], zero)
    rates = [tf.where(block.positive_mask, rate, zero) for rate in tape.gradient(losses, ranks.counts)]
    return tf.reduce_sum(losses, axis=1), ranks.slopes(rates)


class GridRanks:
    """The counts of groups of entries that rank before each positive of a block, and their gradient.

    Args:
        block: of similarities, float32.
        temperature: scalar.
        masks: `[rows, gallery]` bool for each group: all positives are in it, or none is.
        with_positives: for each group, whether positives are in it: the second of two groups, by default.

    Attributes:
        counts: for each group `[rows, gallery]`, at the score of each positive, which does not count itself.
            Elsewhere they mean nothing.
    """

    def __init__(
        self,
        block: Block,
        temperature: tf.Tensor,
        masks: Sequence[tf.Tensor],
        with_positives: Sequence[bool] = (False, True),
    ):
        self._block, self._masks, self._with_positives = block, masks, with_positives
        # Absent rows, of similarity -inf, count nowhere.
        self._grid = grid = Grid(tf.maximum(block.s, -1), temperature)
        self._zero = zero = tf.zeros_like(block.s)
        self._own_slope = 0.25 / temperature
        shares = [grid.spread(tf.where(mask & (block.s >= -2), zero + 1, zero)) for mask in masks]
        self.counts = [
            grid.read(grid.counts(share)) - (0.5 if own else 0) for share, own in zip(shares, with_positives)
        ]
        # How fast the counts fall as the score of a positive rises.
        self._falls = [
            grid.read(grid.slopes(share)) - (self._own_slope if own else 0)
            for share, own in zip(shares, with_positives)
        ]

    def slopes(self, rates: Sequence[tf.Tensor]) -> tf.Tensor:
        """dL/ds, `[rows, gallery]`.

        Args:
            rates: for each group dL/dcount at each positive, `[rows, gallery]`, 0 for all other entries.
        """
        slopes = self._zero
        for mask, own, fall, rate in zip(self._masks, self._with_positives, self._falls, rates):
            # Of the entries that are counted, by all positives; of the positives, by all that they count.
            of_entries = self._grid.read(self._grid.slopes(self._grid.spread(rate)))
            of_entries -= rate * self._own_slope if own else 0
            slopes += tf.where(mask, of_entries, self._zero) - rate * fall
        return slopes


class Grid:
    """Nodes at equal distances over the similarities of a block, and the place of each entry among them."""

    def __init__(self, s: tf.Tensor, temperature: tf.Tensor):
        per_unit = NODES_PER_TEMPERATURE / temperature
        # From the node at similarity 0, as a sum with 1 would lose a digit.
        position = s * per_unit
        below = tf.floor(position)
        a = position - below
        # The node below each entry; one more node below it and two above take part.
        self._lower = tf.clip_by_value(tf.cast(below, tf.int32) + NODES // 2, 1, NODES - 3)
        b, c, d = a + 1, 1 - a, 2 - a
        self._weights = (-a * c * d / 6, b * c * d / 2, a * b * d / 2, -a * b * c / 6)
        self._rows, self._per_unit = tf.shape(s)[0], per_unit
        # From the nodes of a block and of `REACH` blocks on each side to those of the block.
        away = tf.range((2 * REACH + 1) * BLOCK_NODES)[:, None] - REACH * BLOCK_NODES - tf.range(BLOCK_NODES)
        self._step, self._slope = sigmoid_step(temperature)(tf.cast(away, s.dtype) / per_unit)

    def spread(self, values: tf.Tensor) -> tf.Tensor:
        """`[rows, nodes]`: each entry's value, shared among its nodes."""
        place = self._lower + NODES * tf.range(self._rows)[:, None]

        def part(k, weight):
            # In float64, as thousands of equal entries at one node are rounded to the same side.
            shares = tf.cast(weight * values, tf.float64)
            return tf.roll(tf.math.unsorted_segment_sum(shares, place, NODES * self._rows), k - 1, axis=0)

        shares = sum(part(k, weight) for k, weight in enumerate(self._weights))
        return tf.reshape(tf.cast(shares, values.dtype), [-1, NODES])

    def read(self, table: tf.Tensor) -> tf.Tensor:
        """Interpolates `[rows, nodes]` at each entry."""
        return sum(
            weight * tf.gather(table, self._lower + (k - 1), axis=1, batch_dims=1)
            for k, weight in enumerate(self._weights)
        )

    def counts(self, shares: tf.Tensor) -> tf.Tensor:
        """sum_m share_m sigmoid((m - k) h / T) at each node k, `[rows, nodes]`."""
        # Nodes more than `REACH` blocks above count wholly.
        blocks = tf.reduce_sum(tf.reshape(shares, [-1, NODES // BLOCK_NODES, BLOCK_NODES]), axis=2)
        above = tf.cumsum(tf.pad(blocks, [[0, 0], [0, REACH]]), axis=1, reverse=True, exclusive=True)
        near = self._near(shares, self._step) + self._far(shares, 1)
        near = tf.reshape(near, [-1, NODES // BLOCK_NODES, BLOCK_NODES])
        return tf.reshape(near + above[:, REACH:, None], [-1, NODES])

    def slopes(self, shares: tf.Tensor) -> tf.Tensor:
        """The same of the slope of the sigmoid."""
        far = (self._far(shares, 1) + self._far(shares, -1)) * (self._per_unit / NODES_PER_TEMPERATURE)
        return self._near(shares, self._slope) + far

    def _far(self, shares, sign):
        """sum_m share_m exp(-|m - k| h / T) over the nodes m more than `REACH` blocks below each node k.

        With sign -1 above each node. Within a block exponents are relative to its middle.
        """
        step, blocks = sign / NODES_PER_TEMPERATURE, NODES // BLOCK_NODES
        rise = np.exp(step * (np.arange(BLOCK_NODES) - BLOCK_NODES / 2))
        away = sign * (np.arange(blocks) - np.arange(blocks)[:, None])
        fall = np.where(away > REACH, np.exp(-np.abs(away) * BLOCK_NODES / NODES_PER_TEMPERATURE), 0)
        rise, fall = (tf.constant(table, shares.dtype) for table in (rise, fall))
        of_blocks = tf.reduce_sum(tf.reshape(shares, [-1, blocks, BLOCK_NODES]) * rise, axis=2)
        return tf.reshape(tf.matmul(of_blocks, fall)[..., None] / rise, [-1, NODES])

    def _near(self, shares, matrix):
        """sum_m share_m matrix[m, k] over the nodes m up to `REACH` blocks away from each node k."""
        blocks, margin = NODES // BLOCK_NODES, REACH * BLOCK_NODES
        padded = tf.reshape(tf.pad(shares, [[0, 0], [margin, margin]]), [-1, blocks + 2 * REACH, BLOCK_NODES])
        windows = tf.concat([padded[:, k : k + blocks] for k in range(2 * REACH + 1)], axis=2)
        return tf.reshape(tf.matmul(tf.reshape(windows, [-1, matrix.shape[0]]), matrix), [-1, NODES])
