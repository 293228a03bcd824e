"""The search structure of an index: none below some size, where exact search is fast, else ScaNN or FAISS."""

import copy
import dataclasses
import logging
import os
from typing import Protocol

import numpy as np

from tfrank.common.devices import gpu
from tfrank.evaluation.nearest import top_k
from tfrank.evaluation.nearest.depths import in_words
from tfrank.evaluation.nearest.exhaustive import BLOCK_SIMILARITIES, exact
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_files import MANIFEST
from tfrank.evaluation.nearest.scann_index import TREE_FROM, ScannIndex
from tfrank.evaluation.nearest.scann_probe import scann_problem
from tfrank.evaluation.parallel import Gallery
from tfrank.search.faiss_index import SETTINGS, FaissIndex, faiss_problem
from tfrank.search.store import Store, Version, new_search

_LOG = logging.getLogger(__name__)

# A structure is built anew if more than this share of its images were added or removed.
MOST_CHANGED = 0.1
# Embeddings of up to so many bytes are held a second time for fast exact search.
MOST_HELD = 2**28


class Structure(Protocol):
    """Finds the nearest rows of an index."""

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query, `[queries, dim]` of unit norm."""


class Exact:
    """Searches all rows, `[rows, dim]` float32, which are held where they are multiplied.

    Few queries take one product. `exact`, which divides queries and gallery into blocks for several threads,
    takes milliseconds for that.
    """

    def __init__(self, rows: np.ndarray):
        self._rows, self._gallery = rows, Gallery(rows) if rows.nbytes <= MOST_HELD else None

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query."""
        similarities = len(queries) * len(self._rows)
        if self._gallery is None or gpu() or similarities > BLOCK_SIMILARITIES or not similarities:
            return exact(queries, self._rows, k)
        keys = np.full([len(queries), min(k, len(self._rows))], top_k.EMPTY)
        block = self._gallery.similarities(np.asarray(queries, np.float32))
        return Neighbors(*top_k.unpack(top_k.merge_tile(keys, block, 0)))


@dataclasses.dataclass(frozen=True)
class Approximate:
    """Searches by ScaNN or FAISS, built in a folder; `row_of` has the index's row of each of their rows."""

    folder: str
    built: ScannIndex | FaissIndex
    row_of: np.ndarray

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query, but for those that the search misses."""
        found = self.built.search(queries, k)
        return Neighbors(np.where(found.index >= 0, self.row_of[found.index], -1), found.similarity)


def added(index: Store, version: Version, old: Version | None, changed: int, target_recall: float) -> Version:
    """Returns the version with the search structure that it needs, which is built if necessary.

    Args:
        index: the files of the index.
        version: a version without a search structure.
        old: the current version if it is of the same model.
        changed: number of images that were added or removed.
        target_recall: share of the nearest that an approximate search finds.
    """
    if version.rows < TREE_FROM:
        return version
    few = old is not None and old.changed + changed <= MOST_CHANGED * version.rows
    if old and old.search and few and readable(index, old):
        return dataclasses.replace(version, search=old.search, changed=old.changed + changed)
    kind = FaissIndex if (problem := scann_problem()) else ScannIndex
    if problem and (missing := faiss_problem()):
        print(f"All {version.rows:,} images are searched exactly. {problem} Or by FAISS: {missing}")
        return version
    held = index.read(version, ["id"])
    ids = np.array(held.table.column("id").to_pylist())
    built = kind.build(held.rows, ids=ids, target_recall=target_recall)
    found = in_words(built.settings.depths)
    print(f"Of images that are not in the index of {version.rows:,}, the search finds {found}.")
    name = new_search(version.number)
    built.save(index.path(name))
    return dataclasses.replace(version, search=name)


def opened(
    index: Store, version: Version, ids: np.ndarray, rows: np.ndarray, before: Structure | None = None
) -> Structure:
    """Opens the search structure of a version. It also knows of changes since the structure was built.

    Args:
        index: the files of the index.
        version: the version.
        ids: `[rows]` its ids.
        rows: `[rows, dim]` its embeddings.
        before: an open structure of another version. If it is the same one by ScaNN, it is not loaded again.
    """
    if not version.search:
        return Exact(rows)
    index.check_regular(version.search)
    folder = index.path(version.search)
    kind = _kind(folder)
    if problem := _problem(folder, kind):
        _LOG.warning("All %d images are searched exactly. %s", version.rows, problem)
        return Exact(rows)
    if kind is FaissIndex:
        return Approximate(folder, FaissIndex.load(folder, rows, ids), np.arange(len(ids)))
    built = _shared(folder, before) or ScannIndex.load(folder)
    gone = built.ids[~np.isin(built.ids, ids)]
    if len(gone):
        built.delete(gone)
    new = ~np.isin(ids, built.ids)
    if new.any():
        built.add(rows[new], ids[new])
    order = np.argsort(ids)
    return Approximate(folder, built, order[np.searchsorted(ids, built.ids, sorter=order)])


def readable(index: Store, version: Version) -> bool:
    """Returns whether this version of tfrank reads the search structure of an index; also if it has none."""
    return not version.search or _kind(index.path(version.search)) is not None


def _kind(folder: str) -> type[FaissIndex] | type[ScannIndex] | None:
    """Returns what made the search structure of a folder; None if this version of tfrank cannot read it."""
    kinds = {SETTINGS: FaissIndex, MANIFEST: ScannIndex}
    return next((kind for name, kind in kinds.items() if os.path.exists(os.path.join(folder, name))), None)


def _problem(folder: str, kind: type[FaissIndex] | type[ScannIndex] | None) -> str:
    """Returns why the search structure of a folder cannot be used, and what to do; "" if it can be used."""
    if kind is None:
        return f"{folder} is of another version of tfrank. tfrank index makes it again."
    return faiss_problem() if kind is FaissIndex else scann_problem()


def _shared(folder: str, before: Structure | None) -> ScannIndex | None:
    """Returns a copy of an open structure that may change without changing the other; None if it cannot."""
    if isinstance(before, Approximate) and before.folder == folder and isinstance(before.built, ScannIndex):
        return copy.copy(before.built)  # Its changes replace arrays.
    return None
