"""Distribution strategies: the devices on which a model is trained."""

import faulthandler
import logging
import os

import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.training.cluster import read_cluster, wait_for_workers

_LOG = logging.getLogger(__name__)
STRATEGIES = ("one_device", "mirrored", "multi_worker")
# Time limit for TensorFlow to join machines that have all started; it usually takes seconds.
JOIN_SECONDS = 120


def build_strategy(name: str, batch_size: int) -> tf.distribute.Strategy:
    """Returns the strategy of that name; checks that the global batch divides by the number of replicas.

    Args:
        name: "one_device": TensorFlow's default, the first GPU or the CPU. "mirrored": all GPUs of this
            machine, or all logical CPUs if there is no GPU. "multi_worker": all GPUs, or the CPU, of each
            machine in TF_CONFIG; call this before anything else asks TensorFlow for a device.
        batch_size: batch size of all replicas together.

    Raises:
        InputError: the batch does not divide, TF_CONFIG is invalid, or another machine does not start.
    """
    checks.one_of("strategy", name, STRATEGIES)
    if name == "one_device":
        return tf.distribute.get_strategy()
    if name == "multi_worker":
        strategy = _join_workers()
    else:
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    check_divides(batch_size, strategy)
    return strategy


def check_divides(batch_size: int, strategy: tf.distribute.Strategy) -> None:
    """Raises InputError if replicas would not get equal shares of a batch."""
    if batch_size % strategy.num_replicas_in_sync:
        raise InputError(
            f"A batch of {batch_size} images does not divide by {strategy.num_replicas_in_sync} replicas."
            " Change classes_per_batch or examples_per_class."
        )


def _join_workers():
    cluster = read_cluster()
    wait_for_workers(cluster)
    _LOG.info("Worker %d of %d: all are there.", cluster.index, len(cluster.workers))
    # Set a timeout: if a machine dies during the join, TensorFlow waits for it forever and ignores signals.
    with open(os.devnull, "w") as silence:
        faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True, file=silence)
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        finally:
            faulthandler.cancel_dump_traceback_later()
    # All machines have equally many batches. Checking this with each other at every step would take time, and
    # threads that hang when a machine is lost.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy
