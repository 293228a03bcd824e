"""Training on several machines: their addresses, waiting for all to start, and failures of one of them.

During training TensorFlow notices within about ten seconds that another machine is gone. At the start it
does not: it waits for a missing machine forever, without a message, and ignores Ctrl-C. So the machines find
each other before TensorFlow starts.
"""

import contextlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

# Barriers and errors for all machines have no public name.
from tensorflow.python.eager import context as tf_context

from tfrank.common.checks import InputError

_LOG = logging.getLogger(__name__)
# Time limits for a machine to start, and for the chief to write the records.
START_SECONDS = 600
BARRIER_SECONDS = 24 * 3600
SECONDS_BETWEEN_MESSAGES = 10

# Errors that TensorFlow raises on a machine when another one is gone or has reported an error.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


class Cluster(NamedTuple):
    """The machines of a run.

    Attributes:
        workers: the address of each machine, "host:port".
        index: the index of this machine; 0 is the chief, which writes all files.
    """

    workers: tuple[str, ...]
    index: int


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads the machines from TF_CONFIG, which has the form

        {"cluster": {"worker": ["host0:port", "host1:port"]}, "task": {"type": "worker", "index": 0}}

    with its own index on each machine. Raises InputError if TF_CONFIG has another form.
    """
    text = environment.get("TF_CONFIG", "")
    if not text:
        raise _bad_config("It is not set.")
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        kind, index = task["type"], task["index"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _bad_config(f"It cannot be read ({type(error).__name__}: {error}).") from None
    if set(config["cluster"]) != {"worker"} or kind != "worker":
        raise _bad_config("Every machine is a worker; worker 0 is the chief.")
    if not isinstance(workers, list) or not workers or not all(isinstance(w, str) for w in workers):
        raise _bad_config("The workers are not a list of addresses.")
    for worker in workers:
        if not re.fullmatch(r".+:\d{1,5}", worker) or _split(worker)[1] > 65535:
            raise _bad_config(f"{worker!r} is not an address host:port.")
    if len(set(workers)) < len(workers):
        raise _bad_config("Two workers have the same address.")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(workers):
        raise _bad_config(f"The index of this machine, {index!r}, is not from 0 to {len(workers) - 1}.")
    return Cluster(tuple(workers), index)


def _bad_config(what):
    return InputError(
        'strategy=multi_worker needs the environment variable TF_CONFIG on each machine, such as {"cluster":'
        ' {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}, with its own'
        f" index. {what}"
    )


def wait_for_workers(cluster: Cluster, *, seconds: float = START_SECONDS) -> None:
    """Waits until this machine has reached and heard every other; raises InputError naming missing ones."""
    own = cluster.workers[cluster.index]
    unreached = set(range(len(cluster.workers))) - {cluster.index}
    unheard = set(unreached)
    started, told = time.monotonic(), -SECONDS_BETWEEN_MESSAGES
    with socket.socket() as listener:
        # TensorFlow will open the same port next.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.settimeout(0.2)
        try:
            listener.bind(("", _split(own)[1]))
            listener.listen(len(cluster.workers))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"Cannot listen on {own}, the address of worker {cluster.index} in TF_CONFIG ({error})."
            ) from None
        while unreached or unheard:
            unreached = {worker for worker in unreached if not _greet(cluster, worker)}
            unheard.discard(_heard(listener))
            waited = time.monotonic() - started
            names = ", ".join(f"{k} ({cluster.workers[k]})" for k in sorted(unreached | unheard))
            if names and waited > seconds:
                raise InputError(f"Workers {names} did not start within {seconds:.0f} s.")
            if names and waited > told + SECONDS_BETWEEN_MESSAGES:
                _LOG.info("Waiting for workers %s", names)
                told = waited


def _split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)


def _greet(cluster, worker):
    """Tells another machine that this one has started; returns whether it was reached."""
    try:
        with socket.create_connection(_split(cluster.workers[worker]), timeout=2) as connection:
            connection.sendall(f"{cluster.index}\n".encode())
    except (OSError, OverflowError):
        return False
    return True


def _heard(listener):
    """Returns the index of a machine that reports its start; None if none reports at the moment."""
    try:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(2)
            return int(connection.recv(16))
    except (OSError, ValueError):
        return None


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this machine writes files and prints progress: it is the only one, or worker 0."""
    resolver = strategy.cluster_resolver
    return resolver is None or resolver.task_id == 0


def _several(strategy):
    return strategy.cluster_resolver is not None


@contextlib.contextmanager
def together(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context for training on several machines: only the chief prints, and a failure ends all machines.

    If this worker fails, the reason is reported to the others. If another worker fails, raises InputError
    with its reason.
    """
    if not _several(strategy):
        yield
        return
    worker = strategy.cluster_resolver.task_id
    try:
        with contextlib.ExitStack() as stack:
            if worker:
                _LOG.info("Worker %d: the chief, worker 0, shows progress.", worker)
                silence = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(silence))
            yield
    except LOST as error:
        told = re.search(r"worker \d+: .*?(?=\. Barrier Id| *\[type\.googleapis|$)", str(error), re.MULTILINE)
        reason = told.group() if told else "killed, its connection lost, or for a reason that it says itself"
        raise InputError(
            f"Another machine of the run has ended ({reason}). Correct the cause, and run the same command"
            " on all of them: it goes on from the last checkpoint."
        ) from None
    except BaseException as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        message = f"worker {worker}: {reason[0]}"
        with contextlib.suppress(tf.errors.OpError):
            tf_context.context().report_error_to_cluster(tf.errors.ABORTED, message)
        raise


@contextlib.contextmanager
def chief_first(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Runs the block on the chief first; the other machines wait, and then find what it has written."""
    if not _several(strategy):
        yield
        return
    barrier = tf_context.context().wait_at_barrier
    if not is_chief(strategy):
        barrier("chief_first", 1000 * BARRIER_SECONDS)
    yield
    if is_chief(strategy):
        barrier("chief_first", 1000 * BARRIER_SECONDS)
