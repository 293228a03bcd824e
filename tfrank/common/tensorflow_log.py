"""What TensorFlow and ScaNN say: all parts obey `TF_CPP_MIN_LOG_LEVEL`, and no warning is wrong."""

import ctypes
import os
from collections.abc import Callable

import tensorflow as tf

# absl::SetMinLogLevel of the Abseil version in TensorFlow 2.20 and ScaNN 1.4.2.
_SET_MIN_LOG_LEVEL = "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE"


def follow_level(library: str = "") -> None:
    """Makes XLA obey `TF_CPP_MIN_LOG_LEVEL`: 0 prints all, 1 warnings and errors, 2 errors, 3 fatal errors.

    XLA logs through Abseil, which ignores that variable and reports the first program that XLA compiles.
    Does nothing if the library is built differently, for instance on other systems than Linux.

    Args:
        library: path of a library with an Abseil of its own; "" for TensorFlow.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")
    path = library or os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
    set_level = getattr(ctypes.CDLL(path), _SET_MIN_LOG_LEVEL, None) if os.path.exists(path) else None
    if set_level and level in ("0", "1", "2", "3"):
        set_level.argtypes, set_level.restype = [ctypes.c_int], None
        set_level(int(level))


def without_tracing_warning(function: Callable) -> Callable:
    """Returns a `tf.function` that gives no warning of many traces.

    TensorFlow counts traces by code, and would warn of five models as of one that is traced five times.
    """
    function._omit_frequent_tracing_warning = True  # type: ignore[attr-defined]
    return function
