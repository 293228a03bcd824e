"""Writes .safetensors files by the format's description."""

import json
import struct

import numpy as np


def save(path, tensors):
    """Writes arrays of float32 or int64 by name."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        array = np.ascontiguousarray(array)
        dtype = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(np.shape(array)), "data_offsets": place}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
