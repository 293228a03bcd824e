"""Embeddings that stay on disk, and are read row by row."""

import mmap
from typing import IO, Any

import numpy as np

# Rows that are read before their pages are given back: Linux may map 2 MiB for a row.
PIECE_ROWS = 16


class StoredRows:
    """Rows of a file, which is mapped into memory, and rows in memory behind them; indexed as an array.

    Args:
        file: the open file: float32 and nothing else, row after row.
        added: `[added, dim]` float32.
        place: `[rows]` the number of each row among those of the file and those added; None: all, in order.

    Attributes:
        shape: `(rows, dim)`.
    """

    def __init__(self, file: IO[bytes], added: np.ndarray, place: np.ndarray | None = None):
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._stored = np.frombuffer(self._map, "<f4").reshape(-1, added.shape[1])
        self._added, self._place = added, place
        self.shape = (len(self._stored) if place is None else len(place), added.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Returns a copy of rows: a slice, a row number, or numbers of any shape."""
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        place = numbers if self._place is None else self._place[numbers]
        found = np.empty([place.size, self.shape[1]], np.float32)
        for start in range(0, place.size, PIECE_ROWS):
            some = place.ravel()[start : start + PIECE_ROWS]
            later = some >= len(self._stored) if len(self._added) else np.zeros(len(some), bool)
            part = self._stored[np.where(later, 0, some)]
            part[later] = self._added[some[later] - len(self._stored)]
            found[start : start + PIECE_ROWS] = part
            self._release()
        return found.reshape(*place.shape, -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all rows: a memory map if none was added or removed."""
        return np.array(self._stored if self._place is None else self[:], dtype, copy=copy)

    def _release(self):
        """Gives back the memory of the pages that were read; they are read again where they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
