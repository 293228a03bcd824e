"""The search structure of an index: none below some size, where exact search is fast, else ScaNN or FAISS."""

import copy
import dataclasses
import logging

import numpy as np

from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.depths import in_words
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.faiss_index import FaissIndex
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.search.index_folder import IndexFolder, Version, new_search

_LOG = logging.getLogger(__name__)

# A structure is built anew if more than this share of its images were added or removed.
MOST_CHANGED = 0.1


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


Structure = ExactIndex | Approximate


def added(
    index: IndexFolder, version: Version, old: Version | None, changed: int, target_recall: float
) -> Version:
    """Returns the version with the search structure that it needs, which is built if necessary.

    Args:
        index: the files of the index.
        version: a version without a search structure.
        old: the current version if it is of the same model.
        changed: number of images that were added or removed.
        target_recall: share of the nearest that an approximate search finds.
    """
    few = old is not None and old.changed + changed <= MOST_CHANGED * version.rows
    if version.rows >= searchers.TREE_FROM and old and old.search and few and readable(index, old):
        return dataclasses.replace(version, search=old.search, changed=old.changed + changed)
    if (name := searchers.for_rows(version.rows, "scann", "faiss")) == "exact":
        return version
    held = index.read(version, ["id"])
    ids = np.array(held.table.column("id").to_pylist())
    built = searchers.SEARCHERS[name].build(held.rows, ids=ids, target_recall=target_recall)
    found = in_words(built.settings.depths)
    print(f"Of images that are not in the index of {version.rows:,}, the search finds {found}.")
    folder = new_search(version.number)
    built.save(index.path(folder))
    return dataclasses.replace(version, search=folder)


def opened(
    index: IndexFolder, version: Version, ids: np.ndarray, rows: np.ndarray, before: Structure | None = None
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
        return ExactIndex(rows, ids)
    index.check_regular(version.search)
    folder = index.path(version.search)
    if not (name := searchers.name_of(folder)):
        _LOG.warning("%s is of another version of tfrank. tfrank index makes it again.", folder)
        return ExactIndex(rows, ids)
    if why := searchers.usable(name)[1]:
        _LOG.warning(why)
        return ExactIndex(rows, ids)
    if name == "faiss":
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


def readable(index: IndexFolder, version: Version) -> bool:
    """Returns whether this version of tfrank reads the search structure of an index; also if it has none."""
    return not version.search or bool(searchers.name_of(index.path(version.search)))


def _shared(folder: str, before: Structure | None) -> ScannIndex | None:
    """Returns a copy of an open structure that may change without changing the other; None if it cannot."""
    if isinstance(before, Approximate) and before.folder == folder and isinstance(before.built, ScannIndex):
        return copy.copy(before.built)  # Its changes replace arrays.
    return None
