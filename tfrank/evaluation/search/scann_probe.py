"""Whether ScaNN can be imported: found out in a process of its own, since trying may end the process."""

import functools
import importlib.util
import os
import signal
import subprocess
import sys

# It takes some seconds; on a machine with much else to do, or from a slow disk, minutes.
SECONDS = 600
REMEDY = (
    "On Linux on x86-64: pip install 'scann>=1.4.2,<1.5', which needs TensorFlow 2.20. Elsewhere search"
    " exactly: --neighbors=exact."
)


def scann_problem() -> str:
    """Why ScaNN cannot be used here and what to do, in one line; empty where it can.

    What was found is remembered. That it took too long to find out is not: the next call tries again.
    """
    try:
        return _tried()
    except subprocess.TimeoutExpired:
        return (
            f"ScaNN may be there: importing it had not ended after {SECONDS} seconds, perhaps since this"
            " machine has much else to do. Try again, or search exactly: --neighbors=exact."
        )


@functools.cache
def _tried() -> str:
    """As `scann_problem`; TimeoutExpired where trying takes too long.

    A ScaNN that was built for another TensorFlow, or for a processor with other instructions, may kill the
    process that imports it. So another process tries, once, which takes as long as importing TensorFlow.
    """
    if sys.modules.get("scann"):
        return ""
    if importlib.util.find_spec("scann") is None:
        return f"ScaNN cannot be imported (it is not installed). {REMEDY}"
    reason = _reason([sys.executable, "-P", "-c", "import scann"])
    return f"ScaNN cannot be imported ({reason}). {REMEDY}" if reason else ""


def _reason(command: list[str]) -> str:
    """In a few words why a command fails, with the modules of this process at hand; empty if it does not."""
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
