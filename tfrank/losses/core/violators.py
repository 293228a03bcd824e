"""The mean over violators: the terms of a loss that are not 0, in the whole global batch."""

from typing import Literal

import tensorflow as tf

from tfrank.common import checks, distributed

Average = Literal["all", "nonzero"]


def check_average(average: Average, reduction: str | None) -> Average:
    """Returns `average`; "nonzero" is a mean, so that no other reduction fits it."""
    if average == "nonzero" and reduction != "mean":
        raise checks.invalid("reduction", "'mean' with average='nonzero', which is a mean", reduction)
    return average


def share_of_violator(counts: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """How much a violator counts in the sum of a query: valid queries / violators of the global batch.

    The mean over the valid queries of (share x sum of the query's terms) is then the mean over violators.

    Args:
        counts: `[queries]` violators of each query of this replica, 0 for queries that are not valid.
        valid: `[queries]` bool, the valid queries.

    Returns:
        A scalar without a gradient, 0 if nothing violates.
    """
    dtype = counts.dtype
    queries = distributed.sum_over_replicas(tf.reduce_sum(tf.cast(valid, dtype)))
    violators = distributed.sum_over_replicas(tf.reduce_sum(counts))
    return tf.stop_gradient(tf.math.divide_no_nan(queries, violators))
