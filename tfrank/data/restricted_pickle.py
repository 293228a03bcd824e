"""Reads pickles of plain data without running any code that they name.

A pickle is a program: it names functions and has them called. Here no name is looked up. Calls are only
recorded (`_Call`). The few calls that pickled NumPy arrays need are then carried out by the functions below,
with checked values. NumPy's own functions are not safe: a crafted dtype state makes NumPy use bytes of the
file as addresses of objects.
"""

import math
import pickle
import re
from typing import Any

import numpy as np

from tfrank.common.checks import InputError
from tfrank.data.prepare.web_page import reason_of_damage

# Objects in objects. A deeper file would reach Python's limit, in whatever runs there, or end the process.
DEEPEST = 50


def load(path: str) -> Any:
    """Reads the object in a pickle, of any protocol up to 4 and of Python 2 or 3.

    It may consist of dicts, lists, tuples, str, bytes, numbers, booleans, None, and NumPy's arrays, scalars
    and dtypes of these. A Python 2 string becomes a str.

    Raises:
        InputError: the pickle is damaged, or asks for anything else, which the message names.
    """
    try:
        with open(path, "rb") as file:
            return _plain(_Unpickler(file, encoding="latin1").load(), {})
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from None
    except _Refused as error:
        raise InputError(
            f"{path} names {error}, which data does not need; a pickle can run any program. Nothing of it was"
            " run. Download the file again from its publisher."
        ) from None
    # Bytes that are not a pickle can cause any exception.
    except Exception as error:
        why = reason_of_damage(path, " ".join([f"{type(error).__name__}:", *str(error).split()]))
        raise InputError(f"{path} is damaged, or not a pickle ({why}). Download it again.") from None


class _Refused(Exception):
    pass


class _Call:
    """A recorded call: the arguments that a pickle passes, and the state that it sets on the result."""

    args = state = None

    def __init__(self, *args):
        self.args = args

    def __setstate__(self, state):
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        full = f"{module}.{name}"
        if full not in _CALLS:
            raise _Refused(full)
        # A new class each time, so that no pickle can change what the next one gets.
        return type("_Named", (_Call,), {"name": full})


def _plain(value, done, depth=0):
    """Returns the tree with its calls carried out; `done` maps ids of objects met before to results."""
    if id(value) in done:
        return done[id(value)]
    if depth > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")

    def plain(item):
        return _plain(item, done, depth + 1)

    if isinstance(value, _Call):
        result = _CALLS[value.name](value, plain)
    elif type(value) is dict:
        done[id(value)] = result = {}
        result.update((plain(key), plain(item)) for key, item in value.items())
    elif type(value) is list:
        done[id(value)] = result = []
        result.extend(map(plain, value))
    elif type(value) is tuple:
        result = tuple(map(plain, value))
    elif value is None or type(value) in (bool, int, float, str, bytes):
        result = value
    else:
        raise _Refused(value.name if isinstance(value, type) else type(value).__name__)
    done[id(value)] = result
    return result


def _encode(call, plain):
    """Carries out `_codecs.encode(text, "latin1")`: how Python 3 pickles bytes for Python 2."""
    text, encoding = call.args
    if encoding != "latin1":
        raise _Refused(f"the encoding {encoding!r}")
    return text.encode("latin1")


def _empty_bytes(call, plain):
    """Carries out `bytes()`."""
    () = call.args
    return b""


def _dtype(call, plain):
    """Builds a dtype of plain values from its code, such as "i8", and its byte order."""
    code, *_ = call.args
    if not re.fullmatch(r"[?biufcSUO]\d*", code):
        raise _Refused(f"the dtype {code!r}")
    _, order, *parts = call.state or (3, "|", None, None, None)
    if any(part is not None for part in parts[:3]):
        raise _Refused("a dtype with fields")
    dtype = np.dtype(code).newbyteorder(order)
    if not dtype.itemsize:
        raise _Refused("a dtype of no bytes, of which no array has a size")
    return dtype


def _array(call, plain):
    _, shape, dtype, fortran, data = call.state
    dtype = plain(dtype)
    if dtype.hasobject:
        if type(data) is not list:
            raise _Refused("an array of objects that are given as bytes")
        array = np.empty(len(data), object)
        for place, item in enumerate(data):
            array[place] = plain(item)
        return array.reshape(shape, order="F" if fortran else "C")
    data = _bytes(data, plain)
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("an array of another size than its data")
    return np.ndarray(shape, dtype, data, order="F" if fortran else "C").copy("K")


def _scalar(call, plain):
    dtype, data = call.args
    dtype = plain(dtype)
    if dtype.hasobject:
        raise _Refused("a scalar that is an object")
    return np.frombuffer(_bytes(data, plain), dtype, count=1)[0]


def _bytes(data, plain):
    data = plain(data)
    return data.encode("latin1") if isinstance(data, str) else data


def _alone(call, plain):
    """Refuses a call of `numpy.ndarray`: pickles name it as an argument of `_reconstruct` only."""
    raise _Refused(call.name)


# NumPy 2 renamed `numpy.core`, and Python 3 renamed `__builtin__`.
_CALLS = {
    "_codecs.encode": _encode,
    "__builtin__.bytes": _empty_bytes,
    "builtins.bytes": _empty_bytes,
    "numpy.dtype": _dtype,
    "numpy.ndarray": _alone,
    "numpy.core.multiarray._reconstruct": _array,
    "numpy._core.multiarray._reconstruct": _array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
}
