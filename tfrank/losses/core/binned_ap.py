"""Average Precision from histograms of similarities (Revaud et al., arXiv 1906.07589, eq. 5 to 13).

A similarity s has the position x = (1 - s) / spacing among M bin centres on [minimum, 1], which are numbered
0 to M - 1 from the most similar one. Its triangular soft assignment (eq. 7) reaches the two neighbouring
bins, so it adds clip(m + 1 - x, 0, 1) to the cumulative histogram at bin m. The cumulative histograms of eq.
9 are sums of these shares. Each bin takes one vectorised pass over a block that is in cache. The derivative
of a share is nonzero in one bin only, where the gradient looks it up. No tensor has the size bins x batch x
batch.
"""

import tensorflow as tf

from tfrank.losses.core.rows import Block, Kernel


def precision_loss(negatives: tf.Tensor, positives: tf.Tensor) -> tf.Tensor:
    """1 - precision at each bin (eq. 9), 1 for an empty cumulative bin.

    Args:
        negatives: `[rows, bins]` cumulative histogram.
        positives: `[rows, bins]` cumulative histogram.
    """
    total = negatives + positives
    share = tf.math.divide_no_nan(negatives, total)
    return tf.where(total > 0, share, tf.ones_like(share))


def tie_aware_precision_loss(negatives: tf.Tensor, positives: tf.Tensor) -> tf.Tensor:
    """1 - precision at each bin, with the members of a bin in random order (eq. 13)."""
    # h_m + 2 sum_{m' < m} h_m' is the sum of the cumulative histogram at bin m and at bin m - 1.
    both = _with_bin_before(negatives)
    return both / (1 + both + _with_bin_before(positives))


def _with_bin_before(cumulative):
    return cumulative + tf.pad(cumulative, [[0, 0], [1, 0]])[:, :-1]


def histogram_kernel(num_bins: int, tie_aware: bool) -> Kernel:
    """The kernel of L = 1 - sum_m P_m dr_m (eq. 11), with the precision P_m of eq. 9 or 13.

    It takes the centre of the last bin, `minimum`, and counts similarities below it in that bin.
    """
    loss_of = tie_aware_precision_loss if tie_aware else precision_loss

    def kernel(block: Block, minimum):
        per_unit = (num_bins - 1) / (1 - minimum)  # 1 / spacing
        position = tf.clip_by_value((1 - block.s) * per_unit, 0, num_bins - 1)
        reach = tf.cast(tf.range(1, num_bins + 1), block.s.dtype)  # m + 1

        # A position behind the last bin keeps positives out of the histogram of negatives.
        behind = tf.where(block.negative_mask, position, tf.cast(num_bins, block.s.dtype))
        negatives = tf.transpose(tf.map_fn(lambda end: row_sums(tf.clip_by_value(end - behind, 0, 1)), reach))

        def count(i, exists, positives):
            share = tf.clip_by_value(reach - block.at(i, position), 0, 1)
            return (positives + tf.where(exists[:, None], share, tf.zeros_like(share)),)

        (positives,) = block.loop_over_positives(count, (tf.zeros_like(negatives),))

        with tf.GradientTape() as tape:
            tape.watch([negatives, positives])
            recall = (positives - tf.pad(positives, [[0, 0], [1, 0]])[:, :-1]) / block.positives[:, None]
            losses = tf.reduce_sum(loss_of(negatives, positives) * recall, axis=1)
        # d share / ds is per_unit in the lower of the two bins of a similarity, and 0 in all others.
        rates = [per_unit * rate for rate in tape.gradient(losses, [negatives, positives])]
        lower_bin = tf.cast(tf.minimum(position, num_bins - 2), tf.int32)
        column = lower_bin + tf.where(block.negative_mask, 0, num_bins)
        slopes = tf.gather(_materialized(tf.concat(rates, axis=1)), column, axis=1, batch_dims=1)
        # Rounding puts similarities of -1 beyond the last bin of [-1, 1], where they keep their slope.
        moves = block.candidate_mask & ((block.s >= minimum) | (minimum <= -1))
        return losses, tf.where(moves, slopes, tf.zeros_like(slopes))

    return kernel


def _materialized(table):
    """`table`, computed only once.

    XLA would otherwise recompute it for each similarity that looks it up, which takes two thirds of the time.
    XLA does not fuse a product with the identity into its consumers. In float64 the product is exact on any
    device.
    """
    identity = tf.eye(tf.shape(table)[1], dtype=tf.float64)
    return tf.cast(tf.matmul(tf.cast(table, tf.float64), identity), table.dtype)


def row_sums(matrix: tf.Tensor) -> tf.Tensor:
    """`[rows]` sums of `[rows, columns]`: the same as `tf.reduce_sum(matrix, axis=1)`, a quarter faster.

    Each addition of a sum waits for the one before. Folding eight columns into one first cuts these waits to
    an eighth.
    """
    folds = 8
    padded = tf.pad(matrix, [[0, 0], [0, -tf.shape(matrix)[1] % folds]])
    width = tf.shape(padded)[1] // folds
    parts = [padded[:, k * width : (k + 1) * width] for k in range(folds)]
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2])]
    return tf.reduce_sum(parts[0], axis=1)
