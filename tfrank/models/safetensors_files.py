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

from tfrank.common import files, json_files
from tfrank.common.checks import InputError

_LENGTH = struct.Struct("<Q")
# The largest header; that of a large language model has about a megabyte.
_MOST_HEADER = 2**24
AGAIN = "Download it again."
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


_TENSOR = json_files.record(
    {
        "dtype": json_files.one_of(*_DTYPES),
        # NumPy's arrays have at most so many dimensions.
        "shape": json_files.list_of(json_files.whole(), at_most=64),
        "data_offsets": json_files.list_of(json_files.whole(), at_least=2, at_most=2),
    }
)
_INDEX = json_files.record({"weight_map": json_files.dict_of(json_files.file_name())}, others=True)


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
    return sorted(set(json_files.read(index, _INDEX, AGAIN)["weight_map"].values()))


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
        return files.open_regular(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None


def _header(file: IO[bytes], path: str) -> tuple[dict[str, Any], int]:
    """The checked entries of a file by name, and where its data begin."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else size
    if length > min(_MOST_HEADER, size - len(head)):
        raise _damaged(path, "it is shorter than its header says")
    header = json_files.parse(file.read(length), _tensors, f"{path} is not a safetensors file, or", AGAIN)
    _check_places(header, size - len(head) - length, path)
    return header, len(head) + length


def _tensors(name: str, value: Any) -> dict[str, Any]:
    """Checks a header; returns its entries of tensors."""
    entries = json_files.dict_of(json_files.anything)(name, value)
    entries.pop("__metadata__", None)
    return json_files.dict_of(_TENSOR)(name, entries)


def _check_places(header: dict[str, Any], size: int, path: str) -> None:
    """Raises InputError unless the tensors lie within the data, apart, and have the sizes of their shapes."""
    end_before = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, end = entry["data_offsets"]
        if end - first != math.prod(entry["shape"]) * np.dtype(_DTYPES[entry["dtype"]]).itemsize:
            raise _damaged(path, f"{name[:60]!r} has another number of bytes than its shape says")
        if end > size or max(entry["shape"], default=0) > size:
            raise _damaged(path, f"{name[:60]!r} lies beyond the end of the file")
        if first < end_before:
            raise _damaged(path, f"{name[:60]!r} lies over another tensor")
        end_before = end


def _damaged(path: str, reason: str) -> InputError:
    return InputError(f"{path} is not a safetensors file, or is damaged ({reason}). {AGAIN}")
