"""Photos that were moved or renamed keep their embeddings: their files are known by their SHA-256."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tfrank.search.index_folder import IndexFolder, matrix

# Photos that moved together mostly stand in one file of embeddings, and threads ask for them in turn.
_FILES_HELD = 4


class Known(NamedTuple):
    """What an index holds of a file: its size in pixels, and `[dim]`, its embedding."""

    thumbnail: bytes
    width: int
    height: int
    embedding: np.ndarray


class LeavingFiles:
    """The files of images that leave an index, in which a new image may be found again.

    Args:
        index: the index.
        places: id, file of embeddings, and row in it, of each image that leaves and has the index's model.

    Attributes:
        moved: the ids under which files came back, each with the id that the file had.
    """

    def __init__(self, index: IndexFolder, places: Iterable[tuple[str, str, int]]):
        self._index, self.moved = index, dict[str, str]()
        rows: dict[str, dict[int, str]] = {}
        for image_id, part, number in places:
            rows.setdefault(part, {})[number] = image_id
        self._rows = {}
        for part, ids in rows.items():
            if index.has(part, "file_sha256"):
                table = index.read_part(part, ["file_sha256", "width", "height"]).take([*ids])
                for (number, image_id), row in zip(ids.items(), table.to_pylist()):
                    self._rows[row["file_sha256"]] = image_id, part, number, row["width"], row["height"]
        self._embeddings = functools.lru_cache(_FILES_HELD)(
            lambda part: matrix(index.read_part(part, ["embedding"]))
        )

    def find(self, image_id: str, digest: str) -> Known | None:
        """Returns what is known of the file that a new image has, by its SHA-256; None if nothing is."""
        if digest not in self._rows:
            return None
        before, part, number, width, height = self._rows[digest]
        try:
            thumbnail = self._index.read_thumbnail(before)
        except OSError:
            return None
        self.moved[image_id] = before
        return Known(thumbnail, width, height, self._embeddings(part)[number])
