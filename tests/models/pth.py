"""Files as `torch.save` writes them, put together from pickle's opcodes, so that no PyTorch is needed."""

import io
import pickle
import struct
import zipfile

import numpy as np

STORAGES = {"f4": "FloatStorage", "f8": "DoubleStorage", "f2": "HalfStorage", "i8": "LongStorage"}


def text(value):
    return b"X" + struct.pack("<i", len(value.encode())) + value.encode()


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def numbers(values):
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def mapping(items):
    """An OrderedDict of keys to values that are pickled already."""
    body = b"".join(text(key) + value for key, value in items.items())
    return name("collections", "OrderedDict") + b")R(" + body + b"u"


def tensor(key, array, *, storage=None, offset=0, shape=None, strides=None, legacy=False):
    """A tensor of a storage that is read apart; `array` gives what is not given."""
    strides = [step // array.itemsize for step in array.strides] if strides is None else strides
    kind = storage or STORAGES[array.dtype.str[1:]]
    size = b"J" + struct.pack("<i", array.size)
    reference = b"(" + text("storage") + name("torch", kind) + text(key) + text("cpu") + size
    reference += b"NtQ" if legacy else b"tQ"
    place = b"J" + struct.pack("<i", offset) + numbers(array.shape if shape is None else shape)
    arguments = reference + place + numbers(strides) + b"\x89" + name("collections", "OrderedDict") + b")R"
    return name("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


def write_zip(path, tree, storages, root="archive"):
    """Today's format: a pickled tree and the bytes of the storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/data.pkl", b"\x80\x02" + tree + b".")
        archive.writestr(f"{root}/byteorder", "little")
        for key, data in storages.items():
            archive.writestr(f"{root}/data/{key}", data)
        archive.writestr(f"{root}/version", "3\n")


def write_legacy(path, tree, storages, counts=()):
    """The format before 2020: each storage follows the number of what it holds."""
    file = io.BytesIO()
    for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(value, file, protocol=2)
    file.write(b"\x80\x02" + tree + b".")
    pickle.dump(list(storages), file, protocol=2)
    for data, count in zip(storages.values(), counts):
        file.write(struct.pack("<q", count) + data)
    path.write_bytes(file.getvalue())


def save_state(path, state, *, legacy=False, wrap=lambda tree: tree):
    """A state dict of arrays as a file."""
    arrays = {key: np.asarray(array, order="C") for key, array in state.items()}
    keys = {key: str(number) for number, key in enumerate(arrays)}
    tree = mapping({key: tensor(keys[key], array, legacy=legacy) for key, array in arrays.items()})
    storages = {keys[key]: array.tobytes() for key, array in arrays.items()}
    if legacy:
        write_legacy(path, wrap(tree), storages, [array.size for array in arrays.values()])
    else:
        write_zip(path, wrap(tree), storages)
