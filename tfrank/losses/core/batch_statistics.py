"""Batch statistics, for the progress of training."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfrank.common import distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.ranking_loss import checked_batch

# Limits the queries, so that a large batch needs no second similarity matrix as large as that of the loss.
MOST_QUERIES = 1024
BINS = 40


def batch_statistics(labels: tf.Tensor, embeddings: tf.Tensor) -> dict[str, tf.Tensor]:
    """Computes statistics of the global batch, the same on every replica.

    Args:
        labels: `[batch]` integers, those of this replica.
        embeddings: `[batch, dim]` of any norm, those of this replica.

    Returns:
        Scalars and histograms. All but `spread` compare at most 1,024 queries, evenly spread over the batch,
        with the whole batch.
        `batch_recall_at_1`: share of valid queries whose nearest other image is of their class.
        `valid_queries`: share of valid queries, those with a positive.
        `positive_pair_similarity`, `negative_pair_similarity`: means over all pairs, in which a large class
            weighs more than in the metric `PositiveSimilarity`, a mean over queries.
        `spread`: root mean squared distance of the unit embeddings from their mean; 0 if all are one point.
        `positive_histogram`, `negative_histogram`: counts of similarities in 40 equal bins from -1 to 1.
    """
    labels, embeddings, _ = checked_batch(labels, embeddings, None)
    labels = distributed.gather_rows(labels)
    embeddings = distributed.gather_rows(l2_normalize(embeddings))
    size = tf.size(labels)
    queries = tf.range(0, size, tf.maximum(1, -(-size // MOST_QUERIES)))
    similarity = tf.matmul(tf.gather(embeddings, queries), embeddings, transpose_b=True)
    same = tf.gather(labels, queries)[:, None] == labels
    positive = same & (tf.range(size) != queries[:, None])
    valid = tf.reduce_any(positive, axis=1)
    lowest = similarity.dtype.min
    nearest_positive = tf.reduce_max(tf.where(positive, similarity, lowest), axis=1)
    nearest_negative = tf.reduce_max(tf.where(same, lowest, similarity), axis=1)
    # Ties are broken pessimistically: negatives first.
    hit = valid & (nearest_positive > nearest_negative)

    def share(of, among):
        return tf.math.divide_no_nan(
            tf.reduce_sum(tf.cast(of, tf.float32)), tf.reduce_sum(tf.cast(among, tf.float32))
        )

    def mean(mask):
        total = tf.reduce_sum(tf.where(mask, similarity, tf.zeros_like(similarity)))
        return tf.math.divide_no_nan(tf.cast(total, tf.float32), tf.reduce_sum(tf.cast(mask, tf.float32)))

    def histogram(mask):
        values = tf.boolean_mask(similarity, mask & tf.math.is_finite(similarity))
        return tf.histogram_fixed_width(values, tf.constant([-1, 1], similarity.dtype), BINS)

    squared = tf.math.squared_difference(embeddings, tf.reduce_mean(embeddings, axis=0))
    return {
        "batch_recall_at_1": share(hit, valid),
        "valid_queries": share(valid, tf.ones_like(valid)),
        "positive_pair_similarity": mean(positive),
        "negative_pair_similarity": mean(~same),
        "spread": tf.sqrt(tf.reduce_mean(tf.reduce_sum(squared, axis=1))),
        "positive_histogram": histogram(positive),
        "negative_histogram": histogram(~same),
    }


def loss_slope(
    loss: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor],
    labels: tf.Tensor,
    embeddings: Sequence[tf.Tensor],
) -> tf.Tensor:
    """How steep a loss is at the embeddings of the global batch, independent of their norms; a scalar.

        sqrt(N sum_i |e_i|^2 |dL/de_i|^2),   N images in the global batch

    This is the root mean square, over images, of N times the change of the loss when one embedding turns by
    one radian. Losses that a network learns from start at 0.2 or more. Below 0.05 nearly all positives
    have no gradient.

    Args:
        loss: f(labels, embeddings); with several replicas, the share of this replica.
        labels: `[batch]` integers, those of this replica.
        embeddings: those of each output of the model, `[batch, dim]`, of this replica.
    """
    embeddings = [tf.stop_gradient(one) for one in embeddings]
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        value = loss(labels, embeddings)
    gradients = tape.gradient(value, embeddings, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    total = tf.add_n(
        [
            tf.reduce_sum(tf.reduce_sum(e**2, axis=1) * tf.reduce_sum(g**2, axis=1))
            for e, g in zip(embeddings, gradients)
        ]
    )
    count = distributed.sum_over_replicas(tf.cast(tf.shape(labels)[0], total.dtype))
    return tf.sqrt(count * distributed.sum_over_replicas(total))
