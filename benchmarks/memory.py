"""Peak memory of a call, in a process of its own (Linux)."""

import multiprocessing
from collections.abc import Callable


def in_fresh_process(function: Callable, *arguments):
    """`function(*arguments)`, where nothing was done before: TensorFlow keeps what it has once taken."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def held() -> int:
    """Bytes that this process holds now."""
    return _status("VmRSS")


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that this process holds during a call."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # Resets the peak.
    call()
    return _status("VmHWM")


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024
