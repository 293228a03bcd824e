"""Tests whether ScaNN can be imported, in a separate process, because the import may kill the process."""

import functools
import importlib.util
import os
import signal
import subprocess
import sys

# The test takes some seconds; on a busy machine or from a slow disk, minutes.
SECONDS = 600
REMEDY = (
    "On Linux on x86-64: pip install 'scann>=1.4.2,<1.5', which needs TensorFlow 2.20. Elsewhere search"
    " exactly."
)


def scann_problem() -> str:
    """One line that says why ScaNN cannot be used here and what to do; empty if it can be used.

    The answer is cached, except after a timeout: then the next call tries again.
    """
    try:
        return _tried()
    except subprocess.TimeoutExpired:
        return (
            f"ScaNN may be there: importing it had not ended after {SECONDS} seconds, perhaps since this"
            " machine has much else to do. Try again, or search exactly."
        )


@functools.cache
def _tried() -> str:
    """Returns the answer of `scann_problem`; raises TimeoutExpired if the test takes too long.

    A ScaNN built for another TensorFlow or for other processor instructions may kill the process that imports
    it. So a separate process tries once, which takes as long as importing TensorFlow.
    """
    if sys.modules.get("scann"):
        return ""
    if importlib.util.find_spec("scann") is None:
        return f"ScaNN cannot be imported (it is not installed). {REMEDY}"
    reason = _reason([sys.executable, "-P", "-c", "import scann"])
    return f"ScaNN cannot be imported ({reason}). {REMEDY}" if reason else ""


def _reason(command: list[str]) -> str:
    """Runs a command with this process's module path; returns why it failed in a few words, or ""."""
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    process = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
    )
    if process.returncode < 0:
        return f"importing it ends the process by {signal.Signals(-process.returncode).name}"
    lines = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
    return lines[-1][:300] if process.returncode else ""
