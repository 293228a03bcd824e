"""Reads .safetensors files: a header in JSON, then the numbers. Nothing in such a file is run.

The file begins with the length of the header (8 bytes, little-endian), the header, {name: {"dtype", "shape",
"data_offsets": [first, end]}}, and the data, which the offsets count from.
"""

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from tfrank.common.checks import InputError

_LENGTH = struct.Struct("<Q")
# The largest header that the format allows.
_MOST_HEADER = 100_000_000
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": "bfloat16",
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read(path: str, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """The tensors of a file by name: those whose name is wanted.

    Raises:
        InputError: the file cannot be read, is damaged, or does not hold what its header says.
    """
    with _opened(path) as file:
        header, start = _header(file, path)
        tensors = {}
        for name, entry in header.items():
            if not wanted(name):
                continue
            dtype, shape, (first, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            file.seek(start + first)
            tensors[name] = np.frombuffer(file.read(end - first), dtype).reshape(shape)
        return tensors


def names_of_files(folder: str) -> list[str]:
    """The names of the files of a Hugging Face model in its folder, one or several; they may be missing."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.isfile(index):
        return ["model.safetensors"]
    with open(index) as file:
        return sorted(set(json.load(file)["weight_map"].values()))


def names(path: str) -> list[str]:
    """The names of the tensors of a file; raises InputError as `read` does."""
    with _opened(path) as file:
        return list(_header(file, path)[0])


def rename(path: str, target: str, prefix: str) -> None:
    """Copies a file, with a prefix before the names of all tensors."""
    with _opened(path) as file, open(target, "wb") as out:
        header, start = _header(file, path)
        text = json.dumps({prefix + name: entry for name, entry in header.items()}).encode()
        out.write(_LENGTH.pack(len(text)) + text)
        file.seek(start)
        shutil.copyfileobj(file, out)


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


def _header(file: IO[bytes], path: str) -> tuple[dict[str, Any], int]:
    """The checked entries of a file by name, and where its data begin."""
    size = os.fstat(file.fileno()).st_size
    try:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        start = _LENGTH.size + length
        if length > min(_MOST_HEADER, size):
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            shape = entry["shape"]
            if not all(isinstance(n, int) and n >= 0 for n in (first, end, *shape)):
                raise ValueError(f"{name} has offsets or a shape that are no numbers")
            if end - first != math.prod(shape) * np.dtype(_DTYPES[entry["dtype"]]).itemsize:
                raise ValueError(f"{name} has another number of bytes than its shape says")
            if start + end > size:
                raise ValueError(f"{name} lies beyond the end of the file")
        return header, start
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path} is not a safetensors file, or is damaged ({error}). Download it again."
        ) from None
