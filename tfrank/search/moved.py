"""Photos that were moved, renamed or copied back keep their embeddings: files are known by their SHA-256."""

import functools
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from tfrank.search.index_folder import IndexFolder, matrix

# Photos that moved together mostly stand in one file of embeddings, and threads ask for them in turn.
_FILES_HELD = 4


class Known(NamedTuple):
    """What an index holds of a file: its size in pixels, and `[dim]`, its embedding.

    The thumbnail is b"" for an image that has the file under the id of before: an update that was interrupted
    may have written another one.
    """

    thumbnail: bytes
    width: int
    height: int
    embedding: np.ndarray


class LeavingFiles:
    """The files of images that leave an index or may have changed, in which a new image may be found again.

    Args:
        index: the index.
        places: id, file of embeddings, and row in it, of each such image that has the index's model.
        here: ids of images that do not leave. Theirs is the file of none but themselves: their thumbnails
            are written anew.

    Attributes:
        moved: the ids under which files came back, each with the id that the file had.
        same: the ids whose files are what they were, but for their time.
    """

    def __init__(self, index: IndexFolder, places: Iterable[tuple[str, str, int]], here: Collection[str]):
        self._index, self.moved, self.same = index, dict[str, str](), set[str]()
        rows: dict[str, dict[int, str]] = {}
        for image_id, part, number in places:
            rows.setdefault(part, {})[number] = image_id
        self._rows, self._left = {}, {}
        for part, ids in rows.items():
            if index.has(part, "file_sha256"):
                table = index.read_part(part, ["file_sha256", "width", "height"]).take([*ids])
                for (number, image_id), row in zip(ids.items(), table.to_pylist()):
                    digest = row["file_sha256"]
                    self._rows[digest, image_id] = part, number, row["width"], row["height"]
                    if image_id not in here:
                        self._left[digest] = image_id
        self._embeddings = functools.lru_cache(_FILES_HELD)(
            lambda part: matrix(index.read_part(part, ["embedding"]))
        )

    def find(self, image_id: str, digest: str) -> Known | None:
        """Returns what is known of the file that a new image has, by its SHA-256; None if nothing is."""
        before = image_id if (digest, image_id) in self._rows else self._left.get(digest)
        if before is None:
            return None
        part, number, width, height = self._rows[digest, before]
        if before == image_id:
            self.same.add(image_id)
            return Known(b"", width, height, self._embeddings(part)[number])
        try:
            thumbnail = self._index.read_thumbnail(before)
        except OSError:
            return None
        self.moved[image_id] = before
        return Known(thumbnail, width, height, self._embeddings(part)[number])
