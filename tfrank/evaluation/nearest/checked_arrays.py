"""Arrays in the folder of a saved index, whose checksums are verified before they are read."""

import hashlib
import io
import os
from collections.abc import Mapping

import numpy as np

from tfrank.common import files, json_files

# What a settings file says of an array: its SHA-256, as hexadecimal text.
DIGEST = json_files.text("[0-9a-f]{64}")


def save_arrays(folder: str, arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Writes arrays to a folder by the names of their files; returns the checksum of each."""
    digests = {}
    for name, array in arrays.items():
        data = io.BytesIO()
        np.save(data, array, allow_pickle=False)
        digests[name] = hashlib.sha256(data.getbuffer()).hexdigest()
        with files.atomic_write(os.path.join(folder, name)) as file:
            file.write(data.getbuffer())
    return digests


def load_array(folder: str, name: str, digest: str) -> np.ndarray:
    """Reads an array of a folder; raises ValueError if it is damaged, OSError if it cannot be read."""
    with files.open_below(folder, name) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:  # type: ignore[arg-type]
            raise ValueError(f"the checksum of {name} differs")
        file.seek(0)
        try:
            return files.load_array(file)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def rows_of(ids: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns for each id its row among the known ones; of an id that is not known, -1.

    >>> rows_of(np.array(["b", "x", "a"]), np.array(["a", "b"])).tolist()
    [1, -1, 0]
    """
    order = np.argsort(known)
    rows = order[np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)]
    return np.where(known[rows] == ids, rows, -1)
