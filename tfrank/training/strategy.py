"""On which devices a model is trained."""

import faulthandler
import os

import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.training.cluster import read_cluster, wait_for_workers

STRATEGIES = ("one_device", "mirrored", "multi_worker")
# TensorFlow, once all machines have been seen, needs seconds to join them.
JOIN_SECONDS = 120


def build_strategy(name: str, batch_size: int) -> tf.distribute.Strategy:
    """The strategy of that name, for a global batch that divides by its replicas.

    Args:
        name: "one_device": TensorFlow's default, the first GPU or the CPU. "mirrored": all GPUs of this
            machine, or all logical CPUs where there is no GPU. "multi_worker": all GPUs, or the CPU, of each
            of the machines that TF_CONFIG names; before anything else has asked TensorFlow for a device.
        batch_size: of all replicas together.

    Raises:
        InputError: the batch does not divide, TF_CONFIG is bad, or another machine does not start.
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
    """InputError where replicas would not get equal shares of a batch."""
    if batch_size % strategy.num_replicas_in_sync:
        raise InputError(
            f"A batch of {batch_size} images does not divide by {strategy.num_replicas_in_sync} replicas."
            " Change classes_per_batch or examples_per_class."
        )


def _join_workers():
    cluster = read_cluster()
    wait_for_workers(cluster)
    print(f"Worker {cluster.index} of {len(cluster.workers)}: all are there.", flush=True)
    # Should one die just now, TensorFlow would wait for it forever, deaf to signals.
    with open(os.devnull, "w") as silence:
        faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True, file=silence)
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        finally:
            faulthandler.cancel_dump_traceback_later()
    # All machines have as many batches; asking each other at every step whether they do takes time, and
    # threads that a lost machine leaves hanging.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy
