"""Keras metrics to watch while training with a ranking loss, on the batch of all replicas.

    model.compile(loss=tfrank.PNPLoss("dq"), metrics=[tfrank.metrics.BatchRecallAt1()])

Each metric is a pure function of a batch and a thin class. The function returns one value per query, and
which queries have a value. The class averages the values over queries and batches. The most expensive step is
sorting rows, O(batch^2 log batch).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfrank.common import checks, distributed, ignore_labels
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.ignored import kept_rows
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.ranking_loss import checked_batch, keras_builds
from tfrank.losses.cross_batch_memory import CrossBatchMemory
from tfrank.losses.smooth_ap import smooth_ap_loss

Values = tuple[tf.Tensor, tf.Tensor]


class _Pairs(NamedTuple):
    similarity: tf.Tensor  # `[batch, batch]`
    positive: tf.Tensor  # `[batch, batch]` bool, without the query itself
    negative: tf.Tensor  # `[batch, batch]` bool


def _pairs(labels, embeddings):
    same = labels[:, None] == labels
    own = tf.eye(tf.size(labels), dtype=tf.bool)
    return _Pairs(tf.matmul(embeddings, embeddings, transpose_b=True), same & ~own, ~same)


def _ranking(pairs):
    """`[batch, 2 batch]` bool: whether the 1st, 2nd, ... nearest other image is a positive; then False.

    Ties are broken pessimistically, negatives first, if rounding leaves them equal.
    """
    nothing = tf.fill(tf.shape(pairs.similarity), tf.constant(math.inf, pairs.similarity.dtype))
    negatives = tf.where(pairs.negative, -pairs.similarity, nothing)
    positives = tf.where(pairs.positive, -pairs.similarity, nothing)
    order = tf.argsort(tf.concat([negatives, positives], axis=1), stable=True)
    size = tf.shape(positives)[1]
    existing = tf.reduce_sum(tf.cast(pairs.negative | pairs.positive, tf.int32), axis=1, keepdims=True)
    return (order >= size) & (tf.range(2 * size) < existing)


def recall_at_1(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """1 if the nearest other image of the batch is of the query's class, else 0.

    Args:
        labels: `[batch]` int64.
        embeddings: `[batch, dim]` float, unit norm.

    Returns:
        The value of each query, `[batch]`, and which queries have a value, `[batch]` bool. The functions
        below take and return the same.
    """
    pairs = _pairs(labels, embeddings)
    # A batch may have no rows, and so no nearest image.
    nearest = tf.reduce_any(_ranking(pairs)[:, :1], axis=1)
    return tf.cast(nearest, embeddings.dtype), tf.reduce_any(pairs.positive, axis=1)


def average_precision(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """The exact Average Precision of each query over the other images of the batch, 0 to 1."""
    ranking = _ranking(_pairs(labels, embeddings))
    positives = tf.cast(ranking, embeddings.dtype)
    rank = tf.range(1, tf.shape(ranking)[1] + 1)
    precision = tf.cumsum(positives, axis=1) / tf.cast(rank, embeddings.dtype)
    number = tf.reduce_sum(positives, axis=1)
    return tf.math.divide_no_nan(tf.reduce_sum(positives * precision, axis=1), number), number > 0


def ap_approximation_error(labels: tf.Tensor, embeddings: tf.Tensor, *, temperature: float) -> Values:
    """|AP of Smooth-AP - AP|, Smooth-AP eq. 8: how loose the approximation is."""
    exact, valid = average_precision(labels, embeddings)
    rows = labels, embeddings, labels, embeddings, tf.range(tf.size(labels))
    loss, _ = smooth_ap_loss(*rows, temperature=temperature, include_self=False)
    return tf.abs(1 - loss - exact), valid


def operating_region(
    labels: tf.Tensor, embeddings: tf.Tensor, *, temperature: float, least_slope: float
) -> Values:
    """Share of the differences s_j - s_i at which the slope of the sigmoid is above `least_slope`.

    Smooth-AP supplement, eq. 1, over all pairs i, j of the batch, i = j included.
    """
    similarity = _pairs(labels, embeddings).similarity
    # The slope, 1 / (4 temperature cosh(x / (2 temperature))^2), exceeds least_slope for |x| < width.
    flatness = math.sqrt(4 * least_slope * temperature)
    width = 2 * temperature * math.acosh(1 / flatness) if flatness < 1 else 0.0

    # Sort both together: s_i + width comes after every s_j < s_i + width, and before an equal s_j.
    size = tf.size(labels)
    edges = similarity + tf.constant(width, similarity.dtype)
    is_edge = tf.argsort(tf.concat([edges, similarity], axis=1), stable=True) < size
    number = tf.cast(size, tf.float64)
    places = tf.reduce_sum(tf.cast(tf.where(is_edge, tf.range(2 * size), 0), tf.float64), axis=1)
    # Subtract the positions taken by the other edges: 0, 1, 2, ...
    below = places - number * (number - 1) / 2
    # By symmetry the same number of differences is above -width.
    share = tf.maximum(2 * below - number**2, 0) / number**2  # 0 if the width is 0.
    return tf.cast(share, similarity.dtype), tf.ones_like(labels, tf.bool)


def valid_queries(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """1 if the query is valid, that is, has another image of its class in the batch, else 0."""
    valid = tf.reduce_any(_pairs(labels, embeddings).positive, axis=1)
    return tf.cast(valid, embeddings.dtype), tf.ones_like(valid)


def positive_similarity(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """Mean cosine similarity to the positives, -1 to 1."""
    pairs = _pairs(labels, embeddings)
    return _mean_where(pairs.positive, pairs.similarity)


def negative_similarity(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """Mean cosine similarity to the negatives, -1 to 1."""
    pairs = _pairs(labels, embeddings)
    return _mean_where(pairs.negative, pairs.similarity)


def _mean_where(mask, similarity):
    number = tf.reduce_sum(tf.cast(mask, similarity.dtype), axis=1)
    total = tf.reduce_sum(tf.where(mask, similarity, tf.zeros_like(similarity)), axis=1)
    return tf.math.divide_no_nan(total, number), number > 0


def embedding_spread(labels: tf.Tensor, embeddings: tf.Tensor) -> Values:
    """Root mean squared distance of the unit embeddings from their mean, 0 (all are one point) to 1."""
    squared = tf.reduce_sum(
        tf.math.squared_difference(embeddings, tf.reduce_mean(embeddings, axis=0)), axis=1
    )
    spread = tf.sqrt(tf.reduce_mean(squared))
    return tf.fill(tf.shape(labels), spread), tf.ones_like(labels, tf.bool)


class BatchMetric(keras.metrics.Metric):
    """The mean of a function of the batch, over queries and batches.

    Labels and embeddings are gathered from all replicas; each replica computes the whole mean.

    Args:
        function: f(labels, embeddings, **hyper_parameters), which returns a value per query and which queries
            have a value.
        hyper_parameters: keyword arguments of the function.
        name: name of the metric.
        ignore_label: label of rows without a class, which are left out, see `RankingLoss`.

    `update_state(labels, embeddings, sample_weight=None)` takes the arguments of a `RankingLoss`.
    """

    def __init__(
        self,
        function: Callable[..., Values],
        hyper_parameters: dict[str, Any],
        name: str,
        *,
        ignore_label: int | None = None,
    ):
        super().__init__(name=name)
        self.ignore_label = ignore_labels.checked(ignore_label)
        self._function, self.hyper_parameters = function, hyper_parameters
        self._total = self.add_weight(name="total", initializer="zeros")
        self._weight = self.add_weight(name="weight", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch to the mean."""
        batch = checked_batch(y_true, y_pred, sample_weight)
        batch = kept_rows(*batch, ignore_label=self.ignore_label)
        labels, embeddings, weights = (distributed.gather_rows(rows) for rows in batch)
        embeddings = l2_normalize(embeddings)
        values, valid = self._function(labels, embeddings, **self.hyper_parameters)
        values += 0 * tf.reduce_sum(embeddings)  # Comparisons and sorts would hide a NaN.
        weights = tf.where(valid, weights, tf.zeros_like(weights))
        self._total.assign_add(tf.cast(tf.reduce_sum(weights * values), self._total.dtype))
        self._weight.assign_add(tf.cast(tf.reduce_sum(weights), self._weight.dtype))

    def result(self):
        """The current mean; 0 before the first value."""
        return tf.math.divide_no_nan(tf.convert_to_tensor(self._total), tf.convert_to_tensor(self._weight))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor of a subclass."""
        ignored = {} if self.ignore_label is None else {"ignore_label": self.ignore_label}
        return {"name": self.name, **ignored, **self.hyper_parameters}


@keras.saving.register_keras_serializable("tfrank")
class BatchRecallAt1(BatchMetric):
    """`recall_at_1`: share of queries whose nearest other image in the batch is of their class."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "recall_at_1"):
        super().__init__(recall_at_1, {}, name, ignore_label=ignore_label)


@keras.saving.register_keras_serializable("tfrank")
class BatchAveragePrecision(BatchMetric):
    """`average_precision`: mean exact Average Precision in the batch."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "average_precision"):
        super().__init__(average_precision, {}, name, ignore_label=ignore_label)


@keras.saving.register_keras_serializable("tfrank")
class APApproximationError(BatchMetric):
    """`ap_approximation_error`: error of Smooth-AP with this temperature against AP (Smooth-AP eq. 8)."""

    @checks.arguments
    def __init__(
        self,
        *,
        temperature: checks.PositiveFloat = 0.01,
        ignore_label: int | None = None,
        name: str = "ap_approximation_error",
    ):
        super().__init__(
            ap_approximation_error, {"temperature": temperature}, name, ignore_label=ignore_label
        )


@keras.saving.register_keras_serializable("tfrank")
class OperatingRegion(BatchMetric):
    """`operating_region`: share of differences to which a sigmoid of this temperature gives a gradient."""

    @checks.arguments
    def __init__(
        self,
        *,
        temperature: checks.PositiveFloat = 0.01,
        least_slope: checks.PositiveFloat = 0.005,
        ignore_label: int | None = None,
        name: str = "operating_region",
    ):
        hyper_parameters = dict(temperature=temperature, least_slope=least_slope)
        super().__init__(operating_region, hyper_parameters, name, ignore_label=ignore_label)


@keras.saving.register_keras_serializable("tfrank")
class ValidQueries(BatchMetric):
    """`valid_queries`: share of queries with another image of their class, and therefore a loss."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "valid_queries"):
        super().__init__(valid_queries, {}, name, ignore_label=ignore_label)


@keras.saving.register_keras_serializable("tfrank")
class PositiveSimilarity(BatchMetric):
    """`positive_similarity`: mean over queries of their mean similarity to positives."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "positive_similarity"):
        super().__init__(positive_similarity, {}, name, ignore_label=ignore_label)


@keras.saving.register_keras_serializable("tfrank")
class NegativeSimilarity(BatchMetric):
    """`negative_similarity`: mean over queries of their mean similarity to negatives."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "negative_similarity"):
        super().__init__(negative_similarity, {}, name, ignore_label=ignore_label)


def _has_memory(loss):
    """Whether a loss, or one inside it, has a memory."""
    inside = [*getattr(loss, "losses", ()), *filter(None, [getattr(loss, "loss", None)])]
    return isinstance(loss, CrossBatchMemory) or any(map(_has_memory, inside))


@keras.saving.register_keras_serializable("tfrank")
class MeanLoss(keras.metrics.Metric):
    """The mean of a loss over its valid queries of all batches.

    Keras logs the mean of the batches, weighted by their rows. A batch without positives counts there as 0,
    and one with a single valid query as much as a full one. So `val_loss` is too low where the batches of
    `validation_data` are not made of classes.

        model.compile("adam", loss=loss, metrics=[tfrank.metrics.MeanLoss(loss)])

    Args:
        loss: a `RankingLoss` or a loss with proxies, also the one that is trained. Not one with a memory,
            which has the batch itself by the time that metrics are measured: give it the loss inside.
        name: name of the metric.

    `update_state(labels, embeddings, sample_weight=None)` takes the arguments of the loss.

    >>> import tfrank
    >>> loss, rows = tfrank.PNPLoss(), [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]]
    >>> metric = MeanLoss(loss)
    >>> metric.update_state([0, 1, 0, 1], rows)
    >>> metric.update_state([0, 1, 2, 3], rows)  # No row has another of its class.
    >>> round(float(metric.result()), 4) == round(float(loss([0, 1, 0, 1], rows)), 4)
    True
    """

    def __init__(self, loss: Loss, *, name: str = "mean_loss"):
        if not hasattr(loss, "rows"):
            raise checks.invalid("loss", "a RankingLoss or a loss with proxies", loss)
        if _has_memory(loss):
            raise checks.invalid("loss", "one without a memory, such as the loss in it", loss)
        super().__init__(name=name)
        self.loss = loss
        self._total = self.add_weight(name="total", initializer="zeros")
        self._weight = self.add_weight(name="weight", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds the queries of a batch to the mean."""
        if keras_builds():
            return
        losses, weights = self.loss.rows(y_true, y_pred, sample_weight)
        for variable, rows in ((self._total, weights * losses), (self._weight, weights)):
            total = distributed.sum_over_replicas(tf.reduce_sum(rows))
            variable.assign_add(tf.cast(total, variable.dtype))

    def result(self):
        """The current mean; 0 before the first valid query."""
        return tf.math.divide_no_nan(tf.convert_to_tensor(self._total), tf.convert_to_tensor(self._weight))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"name": self.name, "loss": keras.losses.serialize(self.loss)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MeanLoss":
        """Creates the metric from its `get_config`."""
        return cls(**(config | {"loss": keras.losses.deserialize(config["loss"])}))


@keras.saving.register_keras_serializable("tfrank")
class EmbeddingSpread(BatchMetric):
    """`embedding_spread`: 0 if the model maps all images of a batch to one point."""

    def __init__(self, *, ignore_label: int | None = None, name: str = "embedding_spread"):
        super().__init__(embedding_spread, {}, name, ignore_label=ignore_label)
