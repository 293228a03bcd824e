"""Exact ranks of many positives at once: how many scores of a row are above each of them.

The positives of a row are sorted, and each entry is placed among them by binary search. That takes about
1/2 log2^2 P steps for each of P positives and log2 P for each entry, instead of P for each entry. XLA's own
sort took over 500 ns an entry on a busy CPU; the network is not measured.
"""

import numpy as np
import tensorflow as tf

# From this number of positives on they are sorted. An estimate: whole losses are not measured yet.
FROM_POSITIVES = 128
POWERS = 2 ** np.arange(31, dtype=np.int32)


def sorted_rows(scores: tf.Tensor) -> tf.Tensor:
    """The scores in ascending order along the first axis, by a bitonic sorting network.

    Args:
        scores: `[n, rows]`, n a power of two.

    >>> sorted_rows(tf.constant([[3.0], [1.0], [2.0], [0.0]]))[:, 0].numpy().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    number = tf.shape(scores)[0]
    place = tf.range(number)

    def stage(run, step, scores):
        """Compares entries that are `step` apart, in ascending and descending runs of `run` entries."""
        other = tf.gather(scores, tf.bitwise.bitwise_xor(place, step))
        first = tf.equal(tf.bitwise.bitwise_and(place, step), 0)
        ascending = tf.equal(tf.bitwise.bitwise_and(place, run), 0)
        lower = tf.equal(first, ascending)[:, None]
        scores = tf.where(lower, tf.minimum(scores, other), tf.maximum(scores, other))
        last = step == 1
        return tf.where(last, 2 * run, run), tf.where(last, run, step // 2), scores

    return tf.while_loop(lambda run, *_: run <= number, stage, [2, 1, scores])[2]


class SortedScores:
    """The scores of some entries of each row, sorted, to place others among them.

    Args:
        scores: `[rows, n]`.
        exists: `[rows, n]` bool, the scores that count.
    """

    def __init__(self, scores: tf.Tensor, exists: tf.Tensor):
        number = tf.shape(scores)[1]
        # Not a search: XLA would not treat its result as a constant.
        self._size = tf.reduce_min(tf.where(number <= POWERS, POWERS, POWERS[-1]))
        filled = tf.where(exists, scores, tf.constant(float("inf"), scores.dtype))
        filled = tf.pad(filled, [[0, 0], [0, self._size - number]], constant_values=float("inf"))
        self._sorted = tf.transpose(sorted_rows(tf.transpose(filled)))
        # The place after the last equal score.
        self._ends = self._search(self._sorted, tf.less_equal)

    def below(self, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """For each finite score, `[rows, m]`, how many are below it, and how many are not above it."""
        below = self._search(scores, tf.less)
        place = tf.minimum(below, self._size - 1)
        tie = tf.gather(self._sorted, place, axis=1, batch_dims=1) == scores
        return below, tf.where(tie, tf.gather(self._ends, place, axis=1, batch_dims=1), below)

    def _search(self, scores, comparison):
        """How many of the sorted compare with each score, `[rows, m]` int32."""

        def step(size, low):
            probe = low + size
            value = tf.gather(self._sorted, tf.minimum(probe, self._size) - 1, axis=1, batch_dims=1)
            return size // 2, tf.where((probe <= self._size) & comparison(value, scores), probe, low)

        start = [self._size, tf.zeros(tf.shape(scores), tf.int32)]
        return tf.while_loop(lambda size, _: size > 0, step, start)[1]


def number_above(places: tf.Tensor, mask: tf.Tensor, size: tf.Tensor | int) -> tf.Tensor:
    """`[rows, size]`: how many of the masked `places`, `[rows, n]` int32, are above 0, 1, 2, ...

    Of places that are the number of sorted scores below an entry, this is how many entries are above a score.
    """
    counts = sums_by_place(tf.ones_like(places), places, mask, size + 1)
    return tf.cumsum(counts, axis=1, reverse=True, exclusive=True)[:, :-1]


def sums_by_place(values: tf.Tensor, places: tf.Tensor, mask: tf.Tensor, size: tf.Tensor | int) -> tf.Tensor:
    """`[rows, size, ...]`: the sums of the masked `values`, `[rows, n, ...]`, at the places 0, 1, 2, ...

    >>> places, mask = tf.constant([[1, 1, 0]]), tf.constant([[True, True, False]])
    >>> sums_by_place(tf.constant([[3.0, 4.0, 5.0]]), places, mask, 3).numpy().tolist()
    [[0.0, 7.0, 0.0]]
    """
    rows = tf.shape(places)[0]
    flat = tf.where(mask, places + size * tf.range(rows)[:, None], -1)
    sums = tf.math.unsorted_segment_sum(values, flat, size * rows)
    return tf.reshape(sums, tf.concat([[rows, size], tf.shape(values)[2:]], axis=0))
