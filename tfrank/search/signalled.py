"""Says where a signal ended the process that embeds photos, and ends it with the one that started it."""

import multiprocessing.process
import os
import signal
import sys
import threading


def ended_by(status: int | None) -> str:
    """Returns a sentence on a process that a signal ended, by its exit status; "" for any other.

    >>> ended_by(-9)
    'Signal 9 ended the embedding. Start again, and it goes on.'
    """
    return (
        f"Signal {-status} ended the embedding. Start again, and it goes on." if status and status < 0 else ""
    )


def end_with_parent() -> None:
    """Waits for the process that started this one, however it ends; then ends this one."""
    parent = multiprocessing.process.parent_process()
    assert parent, "this process was started by hand"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def say_if_killed(process: multiprocessing.process.BaseProcess, ended: threading.Event) -> None:
    """Waits for a process; prints an error if a signal ended it before `ended` was set."""
    process.join()
    if not ended.is_set() and (why := ended_by(process.exitcode)):
        print(f"Error: {why} The page searches the photos that were embedded.", file=sys.stderr, flush=True)
