"""Work on many shards in several processes at once, counted together."""

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
    try:
        yield from _run_in_processes(function, tasks, counts, processes, watch)
    finally:
        # It holds TensorFlow, memory that is wanted for training. Python has no public way to end it.
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
            # Workers that still start need what this process has made for them.
            pool.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, concurrent.futures.process.BrokenProcessPool):
                raise InputError("A worker process was killed; perhaps memory ran out. Try fewer.") from None
            raise


@contextlib.contextmanager
def _interrupted_later():
    """Ctrl-C inside of the block is heard at its end; processes that begin there do not hear of it at all.

    They inherit the mask, until they can ignore it. The mask alone would not do here: other threads get the
    signal, and it interrupts this one, half way through starting a process that nobody would end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Which is never interrupted.
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
    # Tasks that were handed out before it was told to stop are not begun.
    return None if _counts.stopped else function(task, _counts)
