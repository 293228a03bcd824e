"""Communication between replicas. With one replica, rows and values are returned unchanged.

The same holds outside any replica context, in which Keras traces a loss symbolically.
"""

import tensorflow as tf


def _replicas() -> tf.distribute.ReplicaContext | None:
    context = tf.distribute.get_replica_context()
    return None if context is None or context.num_replicas_in_sync == 1 else context


def replica_count() -> int:
    """Returns the number of replicas."""
    context = _replicas()
    return 1 if context is None else context.num_replicas_in_sync


def gather_rows(rows: tf.Tensor) -> tf.Tensor:
    """Gathers the rows of all replicas, in replica order: `[local, ...]` -> `[global, ...]`, differentiable.

    The gradient of the result is summed over replicas and sliced back. dtypes: int32, int64,
    float16, float32, float64 (TensorFlow refuses others).
    """
    context = _replicas()
    # The identity has a device, which all_gather needs under MultiWorker; a raw function input has none.
    return rows if context is None else context.all_gather(tf.identity(rows), axis=0)


def first_row(rows: tf.Tensor) -> tf.Tensor:
    """Returns the position in `gather_rows(rows)` where this replica's own rows begin, an int32 scalar."""
    context = _replicas()
    if context is None:
        return tf.constant(0)
    sizes = gather_rows(tf.shape(rows)[:1])
    return tf.reduce_sum(sizes[: context.replica_id_in_sync_group])


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of `value` over the replicas, same shape."""
    context = _replicas()
    return value if context is None else context.all_reduce(tf.distribute.ReduceOp.SUM, value)
