"""A batch at a glance, for the progress of training."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfrank.common import distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.ranking_loss import checked_batch

# Queries looked at, so that a large batch needs no second similarity matrix beside the loss's.
MOST_QUERIES = 1024
BINS = 40


def batch_summary(labels: tf.Tensor, embeddings: tf.Tensor) -> dict[str, tf.Tensor]:
    """Some numbers of the global batch, the same on every replica.

    Args:
        labels: `[batch]` integers, this replica's.
        embeddings: `[batch, dim]` of any norm, this replica's.

    Returns:
        Scalars, over at most 1,024 queries spread over the batch against all of it: `batch_recall_at_1`
        (share of the queries with a positive whose nearest other image is of their class), `counting`
        (share of queries with a positive), `positive_similarity` and `negative_similarity` (means), `spread`
        (root mean squared distance of the unit embeddings from their mean: 0 where all are one point). And
        `positive_histogram` and `negative_histogram`: counts of similarities in 40 equal bins, -1 to 1.
    """
    labels, embeddings, _ = checked_batch(labels, embeddings, None)
    labels = distributed.gather_rows(labels)
    embeddings = distributed.gather_rows(l2_normalize(embeddings))
    size = tf.size(labels)
    queries = tf.range(0, size, tf.maximum(1, -(-size // MOST_QUERIES)))
    similarity = tf.matmul(tf.gather(embeddings, queries), embeddings, transpose_b=True)
    same = tf.gather(labels, queries)[:, None] == labels
    positive = same & (tf.range(size) != queries[:, None])
    counts = tf.reduce_any(positive, axis=1)
    lowest = similarity.dtype.min
    nearest_positive = tf.reduce_max(tf.where(positive, similarity, lowest), axis=1)
    nearest_negative = tf.reduce_max(tf.where(same, lowest, similarity), axis=1)
    # A negative tied with the positive stands before it.
    hit = counts & (nearest_positive > nearest_negative)

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
        "batch_recall_at_1": share(hit, counts),
        "counting": share(counts, tf.ones_like(counts)),
        "positive_similarity": mean(positive),
        "negative_similarity": mean(~same),
        "spread": tf.sqrt(tf.reduce_mean(tf.reduce_sum(squared, axis=1))),
        "positive_histogram": histogram(positive),
        "negative_histogram": histogram(~same),
    }


def loss_slope(
    loss: Callable[[tf.Tensor, Sequence[tf.Tensor]], tf.Tensor],
    labels: tf.Tensor,
    embeddings: Sequence[tf.Tensor],
) -> tf.Tensor:
    """How steep a loss is for the embeddings of the global batch, whatever their norms; a scalar.

        sqrt(N sum_i |e_i|^2 |dL/de_i|^2),   N the images of the global batch

    It is the root mean square, over images, of N times the change of the loss by a turn of one embedding by
    one radian. Losses that a network learns from begin at 0.2 or more; below 0.05 hardly any positive is
    pulled.

    Args:
        loss: of labels and embeddings; of several replicas it is each one's share.
        labels: `[batch]` integers, this replica's.
        embeddings: of each output of the model, `[batch, dim]`, this replica's.
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
