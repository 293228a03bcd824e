"""What replicas tell each other. With one replica, rows and values are returned as they are.

Also inside a replica-less context, where Keras traces a loss symbolically.
"""

import tensorflow as tf


def _replicas() -> tf.distribute.ReplicaContext | None:
    context = tf.distribute.get_replica_context()
    return None if context is None or context.num_replicas_in_sync == 1 else context


def replica_count() -> int:
    """How many replicas compute."""
    context = _replicas()
    return 1 if context is None else context.num_replicas_in_sync


def gather_rows(rows: tf.Tensor) -> tf.Tensor:
    """The rows of all replicas, in replica order: `[local, ...]` -> `[global, ...]`, differentiable.

    The gradient of the result is summed over replicas and sliced back. dtypes: int32, int64,
    float16, float32, float64 (others are refused by TensorFlow).
    """
    context = _replicas()
    # identity: a raw function input has no device, which all_gather needs under MultiWorker.
    return rows if context is None else context.all_gather(tf.identity(rows), axis=0)


def first_row(rows: tf.Tensor) -> tf.Tensor:
    """The place in `gather_rows(rows)` where this replica's own rows begin, an int32 scalar."""
    context = _replicas()
    if context is None:
        return tf.constant(0)
    sizes = gather_rows(tf.shape(rows)[:1])
    return tf.reduce_sum(sizes[: context.replica_id_in_sync_group])


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """The sum of `value` over the replicas, same shape."""
    context = _replicas()
    return value if context is None else context.all_reduce(tf.distribute.ReduceOp.SUM, value)
