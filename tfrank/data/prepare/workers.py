"""Runs a function on many shards in several processes, with shared counts."""

import concurrent.futures
import concurrent.futures.process
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfrank.common.checks import InputError

_SECONDS_BETWEEN_LOOKS = 0.2
# Workers are forked from a server process that has imported TensorFlow but not used it.
_CONTEXT = multiprocessing.get_context("forkserver")


class Counts:
    """Counts of all processes so far; any process can tell all to stop."""

    def __init__(self):
        self._done, self._bad = _CONTEXT.Value("q", 0), _CONTEXT.Value("q", 0)
        self._stopped = _CONTEXT.Event()

    @property
    def done(self) -> int:
        """Amount of finished work in images or bytes, without `bad`."""
        return self._done.value

    @property
    def bad(self) -> int:
        """Number of images that cannot be used."""
        return self._bad.value

    @property
    def stopped(self) -> bool:
        """Whether all processes should end early."""
        return self._stopped.is_set()

    def add(self, done: int = 1, bad: int = 0) -> None:
        """Adds to the counts."""
        for value, more in ((self._done, done), (self._bad, bad)):
            if more:
                with value.get_lock():
                    value.value += more

    def stop(self) -> None:
        """Tells all processes to end early."""
        self._stopped.set()


def run_tasks(
    function: Callable[[Any, Counts], Any],
    tasks: Iterable[Any],
    *,
    counts: Counts,
    processes: int,
    watch: Callable[[], None],
) -> Iterator[Any]:
    """Yields `function(task, counts)` for each task, in the order of completion.

    Args:
        function: a function at module level, so that other processes can import it. It calls `counts.add` as
            it works, and returns early if `counts.stopped`.
        tasks: arguments that can be pickled.
        counts: the counts of all processes.
        processes: number of worker processes; 1 runs everything in this process.
        watch: called a few times a second, and at the end.
    """
    if processes <= 1:
        yield from _run_here(function, tasks, counts, watch)
        return
    _CONTEXT.set_forkserver_preload([function.__module__])
    try:
        yield from _run_in_processes(function, tasks, counts, processes, watch)
    finally:
        # Its TensorFlow takes memory that training needs. Python has no public way to end the server.
        multiprocessing.forkserver._forkserver._stop()


def _run_in_processes(function, tasks, counts, processes, watch):
    with concurrent.futures.ProcessPoolExecutor(processes, _CONTEXT, _begin, (counts,)) as pool:
        try:
            with _interrupted_later():
                pending = {pool.submit(_call, function, task) for task in tasks}
            while pending:
                done, pending = concurrent.futures.wait(
                    pending, _SECONDS_BETWEEN_LOOKS, concurrent.futures.FIRST_COMPLETED
                )
                watch()
                for future in done:
                    yield future.result()
        except BaseException as error:
            counts.stop()
            # Wait: workers that are still starting need resources of this process.
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, concurrent.futures.process.BrokenProcessPool):
                raise InputError("A worker process was killed; perhaps memory ran out. Try fewer.") from None
            raise


@contextlib.contextmanager
def _interrupted_later():
    """Delays Ctrl-C inside the block to its end; processes that start in the block never get it.

    They inherit the signal mask, until they can ignore the signal. The mask alone is not enough for this
    process: other threads would get the signal, and it would interrupt this thread while it starts a process,
    which nobody would end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread is interrupted.
        return
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


def _run_here(function, tasks, counts, watch):
    """Runs all tasks in this process, while a thread calls `watch`."""
    ended = threading.Event()

    def look():
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            watch()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        for task in tasks:
            yield function(task, counts)
    finally:
        ended.set()
        thread.join()
        watch()


# The counts in a worker process. Shared values can only be passed when the process starts.
_counts: Counts


def _begin(counts):
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    """Ends this worker when its parent has died: a killed parent cannot tell its workers."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _call(function, task):
    # Skip tasks that were queued before the stop.
    return None if _counts.stopped else function(task, _counts)
