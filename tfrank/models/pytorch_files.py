"""Reads PyTorch's state dicts without PyTorch, and without running code that a file asks for.

A `.pth` file is a pickle, and a pickle may call any Python function by name. This reader knows only the names
of ordered dicts, storages and tensors, and gives them its own meaning: descriptions whose numbers are read
later. Any other name raises InputError.
"""

import collections
import math
import os
import pickle
import struct
import zipfile
from typing import IO, Any, NamedTuple

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError

# The dtypes of PyTorch's storages; bfloat16 is the upper half of float32.
_DTYPES = {
    "Float": "<f4",
    "Double": "<f8",
    "Half": "<f2",
    "BFloat16": "bfloat16",
    "Long": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "<i1",
    "Byte": "<u1",
    "Bool": "?",
}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# The keys under which training scripts store the state dict beside other things.
_WRAPPERS = ("state_dict", "model_state_dict", "model")


class _Storage(NamedTuple):
    key: str
    dtype: str
    size: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple
    strides: tuple


def read_state_dict(path: str) -> dict[str, np.ndarray]:
    """The tensors of a state dict by name, from a file of `torch.save` in its current or older format.

    Uses the dict under "state_dict", "model_state_dict" or "model", if there is one, and removes the prefix
    "module." if all names begin with it.

    Args:
        path: path of the `.pth` or `.pt` file.

    Raises:
        InputError: the file does not exist, is damaged, has no tensors, or asks for a Python object that a
            state dict does not need.
    """
    try:
        with files.open_regular(path) as file:
            tree, data = _read_zip(file) if zipfile.is_zipfile(file) else _read_legacy(file)
        tensors = _find_tensors(tree)
        stored = sum(map(len, data.values()))
        # Two names may share a tensor. What is said to take more was made to fill the memory.
        if (
            sum(math.prod(one.shape) * _item_type(one.storage).itemsize for one in tensors.values())
            > 2 * stored
        ):
            raise ValueError("its tensors lie over one another")
        if tensors:
            return {name: _array(tensor, data[tensor.storage.key]) for name, tensor in tensors.items()}
    except InputError as error:
        raise InputError(f"{path} {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from None
    except Exception as error:  # A damaged pickle can raise any exception.
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path} is not a PyTorch file, or is damaged ({reason}). Download it again."
        ) from None
    raise InputError(
        f"{path} contains no state dict, since it has no named tensors. Save model.state_dict()."
    )


class _Unpickler(pickle.Unpickler):
    """Accepts only the few names of a state dict, which give plain values without anything to call."""

    def __init__(self, file):
        super().__init__(file, encoding="utf-8")  # Files written by Python 2 store text as bytes.
        self.storages = {}

    def find_class(self, module, name):
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return collections.OrderedDict
        if full in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            return lambda storage, offset, shape, strides, *_: _Tensor(storage, offset, shape, strides)
        if full == "torch._utils._rebuild_parameter":
            return lambda tensor, *_: tensor
        if module == "torch" and name.removesuffix("Storage") in _DTYPES:
            return _DTYPES[name.removesuffix("Storage")]
        raise InputError(
            f"names the Python object {full}, which a state dict does not need; nothing of it was run."
            " If you trust its source, load it with PyTorch and torch.save(model.state_dict(), ...)."
        )

    def persistent_load(self, pid):
        kind, dtype, key, _, size, *view = pid
        if kind != "storage" or any(part is not None for part in view):
            raise pickle.UnpicklingError(f"unknown reference {pid!r}")
        return self.storages.setdefault(key, _Storage(key, dtype, size))


def _read_zip(file: IO[bytes]) -> tuple[Any, dict[str, bytes]]:
    """The tree of descriptions and the bytes of the storages: `<root>/data.pkl` and `<root>/data/<key>`."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        root = next(name for name in names if name.endswith("/data.pkl")).removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise InputError("was written by a big-endian machine. Save it again on a little-endian one.")
        # PyTorch does not compress, so no file unpacks to more than its own size.
        if sum(one.file_size for one in archive.infolist()) > os.fstat(file.fileno()).st_size:
            raise ValueError("it unpacks to more than its own size")
        with archive.open(f"{root}data.pkl") as pickled:
            unpickler = _Unpickler(pickled)
            tree = unpickler.load()
        return tree, {key: archive.read(f"{root}data/{key}") for key in unpickler.storages}


def _read_legacy(file: IO[bytes]) -> tuple[Any, dict[str, bytes]]:
    """The same as `_read_zip` for the format before 2020.

    Pickles of a magic number, a version, the machine, the tree and the keys of the storages; then the length
    and the numbers of each storage.
    """
    file.seek(0)
    if _Unpickler(file).load() != _LEGACY_MAGIC:
        raise pickle.UnpicklingError("not a file of torch.save")
    _Unpickler(file).load()
    if not _Unpickler(file).load()["little_endian"]:
        raise InputError("was written by a big-endian machine. Save it again on a little-endian one.")
    unpickler = _Unpickler(file)
    tree = unpickler.load()
    data = {}
    for key in _Unpickler(file).load():
        storage = unpickler.storages[key]
        if struct.unpack("<q", file.read(8)) != (storage.size,):
            raise pickle.UnpicklingError(f"storage {key} is not of {storage.size} numbers")
        data[key] = file.read(storage.size * _item_type(storage).itemsize)
    return tree, data


def _find_tensors(tree):
    """The named tensors of a state dict, or of a nested one."""
    for key in _WRAPPERS:
        if isinstance(tree, dict) and isinstance(tree.get(key), dict):
            tree = tree[key]
    items = tree.items() if isinstance(tree, dict) else ()
    tensors = {name: value for name, value in items if isinstance(name, str) and isinstance(value, _Tensor)}
    prefix = "module." if all(name.startswith("module.") for name in tensors) else ""
    return {name.removeprefix(prefix): value for name, value in tensors.items()}


def _item_type(storage):
    return np.dtype("<u2" if storage.dtype == "bfloat16" else storage.dtype)


def _array(tensor: _Tensor, data: bytes) -> np.ndarray:
    """The array of a tensor; raises ValueError if the tensor does not lie within its storage."""
    storage, offset, shape, strides = tensor
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise ValueError(f"a tensor of shape {shape} and strides {strides}")
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides))
    count = math.prod(shape)
    item = _item_type(storage)
    if len(data) != storage.size * item.itemsize or (count and last >= storage.size) or count > storage.size:
        raise ValueError(f"a tensor of shape {shape} outside its storage of {storage.size}")
    numbers = np.frombuffer(data, item)
    if storage.dtype == "bfloat16":
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    steps = [stride * numbers.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps).copy()
