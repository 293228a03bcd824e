"""Properties of a machine that change the rounding of results: threads, processor, TensorFlow."""

import os
import re

import tensorflow as tf


def describe() -> dict[str, str]:
    """Describes what determines the order in which this process adds up numbers.

    Returns:
        "threads": threads per operation. "processor": its name and vector instructions. "GPUs": their names.
        "oneDNN": "on" or "off". "TensorFlow": the version.

    >>> sorted(describe())
    ['GPUs', 'TensorFlow', 'oneDNN', 'processor', 'threads']
    """
    threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {
        "threads": str(threads),
        "processor": _processor(),
        "GPUs": ", ".join(details.get("device_name", "GPU") for details in gpus) or "none",
        "oneDNN": "off" if os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() in ("0", "false") else "on",
        "TensorFlow": tf.__version__,
    }


def differences(before: dict[str, str], now: dict[str, str]) -> str:
    """The differences between two descriptions, in words; "" if there are none.

    >>> differences({"threads": "2", "oneDNN": "on"}, {"threads": "1", "oneDNN": "on"})
    'threads: 2 before, 1 now'
    """
    names = [name for name in before | now if before.get(name) != now.get(name)]
    return "; ".join(f"{name}: {before.get(name)} before, {now.get(name)} now" for name in names)


def _processor():
    """The name of the processor and its vector instructions, which determine the matrix-product kernels."""
    try:
        with open("/proc/cpuinfo") as file:
            text = file.read()
    except OSError:
        return "unknown"
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    found = [flag for flag in flags[1].split() if re.match("avx|fma|amx|asimd|sve", flag)] if flags else []
    return " ".join([name[1] if name else "unknown", *sorted(found)])
