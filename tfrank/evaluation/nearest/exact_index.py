"""A gallery that is searched exactly, also by one query at a time in little time."""

import numpy as np

from tfrank.common.devices import gpu
from tfrank.evaluation.nearest import scann_files, top_k
from tfrank.evaluation.nearest.exhaustive import BLOCK_SIMILARITIES, exact
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_settings import Settings
from tfrank.evaluation.parallel import Gallery

# Embeddings of up to so many bytes are held a second time for fast search.
MOST_HELD = 2**28


class ExactIndex:
    """Searches all rows, which are held where they are multiplied.

    Few queries take one product. `exact`, which divides queries and gallery into blocks for several threads,
    takes milliseconds for that.

    Args:
        rows: `[rows, dim]` float32 of unit norm.
        ids: `[rows]` integers or strings, one per row.

    Attributes:
        ids: as given.
        settings: say that it is exact.
    """

    settings = Settings("brute_force", 0)

    def __init__(self, rows: np.ndarray, ids: np.ndarray):
        self.ids, self._rows = ids, rows
        self._gallery = Gallery(rows) if rows.nbytes <= MOST_HELD else None

    @classmethod
    def build(cls, embeddings: np.ndarray, *, ids: np.ndarray, target_recall: float = 1) -> "ExactIndex":
        """Returns the index; it reaches every target."""
        return cls(embeddings, ids)

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query."""
        similarities = len(queries) * len(self._rows)
        if self._gallery is None or gpu() or similarities > BLOCK_SIMILARITIES or not similarities:
            return exact(queries, self._rows, k)
        keys = np.full([len(queries), min(k, len(self._rows))], top_k.EMPTY)
        block = self._gallery.similarities(np.asarray(queries, np.float32))
        return Neighbors(*top_k.unpack(top_k.merge_tile(keys, block, 0)))

    def save(self, folder: str) -> None:
        """Writes the index to a folder, as a `ScannIndex` that searches exactly."""
        scann_files.save(folder, self._rows, self.ids, np.arange(0), None, self.settings._asdict())
