"""Work on many shards in several processes at once, counted together."""

import concurrent.futures
import concurrent.futures.process
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tfrank.checks import InputError

_SECONDS_BETWEEN_LOOKS = 0.2
# Workers are forked from a server that has imported TensorFlow once and done nothing with it.
_CONTEXT = multiprocessing.get_context("forkserver")


class Counts:
    """What all processes have done so far; any of them can tell all to stop."""

    def __init__(self):
        self._done, self._bad = _CONTEXT.Value("q", 0), _CONTEXT.Value("q", 0)
        self._stopped = _CONTEXT.Event()

    @property
    def done(self) -> int:
        """Images, or records, that have been dealt with."""
        return self._done.value

    @property
    def bad(self) -> int:
        """Those of them that cannot be used."""
        return self._bad.value

    @property
    def stopped(self) -> bool:
        """Whether work is to end early."""
        return self._stopped.is_set()

    def add(self, done: int = 1, bad: int = 0) -> None:
        """Counts some more."""
        for value, more in ((self._done, done), (self._bad, bad)):
            if more:
                with value.get_lock():
                    value.value += more

    def stop(self) -> None:
        """Tells all processes to end early."""
        self._stopped.set()


def run(
    function: Callable[[Any, Counts], Any],
    tasks: Iterable[Any],
    *,
    counts: Counts,
    processes: int,
    watch: Callable[[], None],
) -> Iterator[Any]:
    """Yields `function(task, counts)` for each task, in the order in which they are done.

    Args:
        function: of a module, so that other processes can import it. It calls `counts.add` as it goes, and
            returns early where `counts.stopped`.
        tasks: what can be pickled.
        counts: of all processes.
        processes: how many work at once; 1: this one.
        watch: called a few times a second, and at the end.
    """
    if processes <= 1:
        yield from _run_here(function, tasks, counts, watch)
        return
    _CONTEXT.set_forkserver_preload([function.__module__])
    with concurrent.futures.ProcessPoolExecutor(processes, _CONTEXT, _begin, (counts,)) as pool:
        try:
            # Until they can ignore Ctrl-C they do not hear of it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                pending = {pool.submit(_call, function, task) for task in tasks}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            while pending:
                done, pending = concurrent.futures.wait(
                    pending, _SECONDS_BETWEEN_LOOKS, concurrent.futures.FIRST_COMPLETED
                )
                watch()
                for future in done:
                    yield future.result()
        except BaseException as error:
            counts.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, concurrent.futures.process.BrokenProcessPool):
                raise InputError("A worker process was killed; perhaps memory ran out. Try fewer.") from None
            raise


def _run_here(function, tasks, counts, watch):
    """In this process; a thread looks on meanwhile."""
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


# Of this worker process: shared values can only be handed over when it starts.
_counts: Counts


def _begin(counts):
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    """A parent that was killed cannot tell its workers."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _call(function, task):
    return function(task, _counts)
