"""The search structure of an index: codes if its storage says so; else none, or ScaNN or FAISS if large."""

import copy
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Collection

import numpy as np

from tfrank.common.spread import spread
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.coded_index import CodedIndex
from tfrank.evaluation.nearest.depths import in_words
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.faiss_index import FaissIndex
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.search.index_folder import IndexFolder, Version

_LOG = logging.getLogger(__name__)

# Images that the search by codes is compared with exact search on, for the line that is printed.
COMPARED = 200
# A structure is built anew if more than this share of its images were added or removed.
MOST_CHANGED = 0.1


@dataclasses.dataclass(frozen=True)
class Approximate:
    """Searches by ScaNN or FAISS, built in a folder; `row_of` has the index's row of each of their rows."""

    folder: str
    built: ScannIndex | FaissIndex
    row_of: np.ndarray

    @property
    def built_by(self) -> str:
        """The name of the library."""
        return "FAISS" if isinstance(self.built, FaissIndex) else "ScaNN"

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query, but for those that the search misses."""
        found = self.built.search(queries, k)
        return Neighbors(np.where(found.index >= 0, self.row_of[found.index], -1), found.similarity)


Structure = ExactIndex | Approximate | CodedIndex


def added(
    index: IndexFolder,
    version: Version,
    old: Version | None,
    changed: int,
    fresh: Collection[str] = (),
) -> Version:
    """Returns the version with the search structure that it needs, which is built if necessary.

    Args:
        index: the files of the index.
        version: a version without a search structure.
        old: the current version if it is of the same model.
        changed: number of images that were added or removed.
        fresh: ids of images that were embedded since the current version. A structure that knows one of them
            knows it by another embedding, and is not used: also where the image was removed in between.
    """
    few = old is not None and old.changed + changed <= MOST_CHANGED * version.rows
    coded = version.storage != "float32"
    same = old is not None and old.search and is_as(old, version) and readable(index, old)
    if (coded or version.rows >= searchers.TREE_FROM) and few and same and not _knows(index, old, fresh):
        return dataclasses.replace(version, search=old.search, changed=old.changed + changed)
    name = "coded" if coded else searchers.for_rows(version.rows, "scann", "faiss")
    if name == "exact":
        return version
    held = index.read(version, ["id", "label"] if coded else ["id"])
    ids = np.array(held.table.column("id").to_pylist())
    options = {"storage": version.storage} if coded else {}
    built = searchers.SEARCHERS[name].build(
        held.rows, ids=ids, target_recall=version.target_recall, **options
    )
    found = in_words(built.settings.depths)
    print(f"Of images that are not in the index of {version.rows:,}, the search finds {found}.")
    # No other structure ever had this name.
    folder = f"search-{version.number}-{secrets.token_hex(8)}"
    built.save(index.path(folder))
    if coded:
        opened = CodedIndex.load(index.path(folder), ids, version.dim, lambda rows: held.rows[rows])
        print(_compared(opened, held.rows, held.table.column("label").to_pylist()))
    return dataclasses.replace(version, search=folder)


def is_as(old: Version, version: Version) -> bool:
    """Returns whether a version is to be searched as another is: by the same storage, to the same recall."""
    return (old.storage, old.target_recall) == (version.storage, version.target_recall)


def _knows(index: IndexFolder, version: Version, ids: Collection[str]) -> bool:
    """Returns whether the search structure of a version knows one of these ids, or cannot be read."""
    try:
        # The few among the many: the other way round sorts all, 2 s of a million for one image.
        return bool(np.isin(searchers.ids_of(index.path(version.search)), np.array([*ids], str)).any())
    except (OSError, ValueError):
        return True


def _compared(coded: CodedIndex, rows: np.ndarray, labels: list[str | None]) -> str:
    """Returns what the codes take, and how images of the index find each other by them and exactly."""
    chosen = spread(len(rows), COMPARED)
    begun = time.perf_counter()
    found = [coded.search(rows[[row]], 11).index[0] for row in chosen]
    milliseconds = 1000 * (time.perf_counter() - begun) / len(chosen)
    others = [index[index != row][:10] for index, row in zip(found, chosen)]
    wanted = [index[index != row][:10] for index, row in zip(exact(rows[chosen], rows, 11).index, chosen)]
    shared = sum(len(np.intersect1d(*pair)) for pair in zip(others, wanted)) / max(1, sum(map(len, wanted)))
    right = [
        100 * np.mean([labels[index[0]] == labels[row] for index, row in zip(lists, chosen) if len(index)])
        for lists in (others, wanted)
        if len(rows) > 1 and any(labels)
    ]
    recall = "Recall@1 {:.1f} % (exact: {:.1f} %), ".format(*right) if right else ""
    return (
        f"{coded.settings.storage}: {coded.bytes_a_row:,} bytes of memory a photo, and"
        f" {4 * rows.shape[1]:,} on disk. {recall}overlap@10 with exact search {100 * shared:.1f} %,"
        f" {milliseconds:.1f} ms a query, for {len(chosen)} images of the index."
    )


def among(
    search: "Structure", embeddings: np.ndarray, queries: np.ndarray, k: int, rows: np.ndarray
) -> Neighbors:
    """Returns the k nearest of some rows of the index: by their codes if it has some, else exactly."""
    if isinstance(search, CodedIndex):
        return search.search(queries, k, rows)
    found = exact(queries, embeddings[rows], k)
    return Neighbors(rows[found.index], found.similarity)


def in_a_sentence(search: "Structure") -> str:
    """Returns how the images are compared, for those who read what was found."""
    if isinstance(search, ExactIndex):
        return "All images are compared exactly."
    by = f"{search.settings.storage} codes" if isinstance(search, CodedIndex) else search.built_by
    settings = search.settings if isinstance(search, CodedIndex) else search.built.settings
    return f"The search, by {by}, finds {in_words(settings.depths)}."


def opened(
    index: IndexFolder,
    version: Version,
    ids: np.ndarray,
    rows: np.ndarray | Callable[[np.ndarray], np.ndarray],
    before: Structure | None = None,
) -> Structure:
    """Opens the search structure of a version. It also knows of changes since the structure was built.

    Args:
        index: the files of the index.
        version: the version.
        ids: `[rows]` its ids.
        rows: `[rows, dim]` its embeddings; for codes, a function that reads those of some rows.
        before: an open structure of another version. If it is the same one by ScaNN, it is not loaded again.
    """
    if not version.search:
        return ExactIndex(rows, ids)
    index.check_regular(version.search)
    folder = index.path(version.search)
    if version.storage != "float32":
        return CodedIndex.load(folder, ids, version.dim, rows)
    if not (name := searchers.name_of(folder)):
        _LOG.warning("%s is of another version of tfrank. tfrank index makes it again.", folder)
        return ExactIndex(rows, ids)
    if why := searchers.usable(name)[1]:
        _LOG.warning(why)
        return ExactIndex(rows, ids)
    if name == "faiss":
        return Approximate(folder, FaissIndex.load(folder, rows, ids), np.arange(len(ids)))
    shared = _shared(folder, before)
    built, order = shared or ScannIndex.load(folder), np.argsort(ids)
    gone = ~np.isin(built.ids, ids)
    if shared:
        # What was added to it may have another embedding by now; what it was built of has not.
        later = np.flatnonzero(~np.isin(built.ids, searchers.ids_of(folder)) & ~gone)
        now = rows[order[np.searchsorted(ids, built.ids[later], sorter=order)]]
        gone[later] = np.any(np.abs(now - built.rows[later]) > 1e-6, axis=1)
    if gone.any():
        built.delete(built.ids[gone])
    new = ~np.isin(ids, built.ids)
    if new.any():
        built.add(rows[new], ids[new])
    return Approximate(folder, built, order[np.searchsorted(ids, built.ids, sorter=order)])


def readable(index: IndexFolder, version: Version) -> bool:
    """Returns whether this version of tfrank reads the search structure of an index; also if it has none."""
    return not version.search or bool(searchers.name_of(index.path(version.search)))


def _shared(folder: str, before: Structure | None) -> ScannIndex | None:
    """Returns a copy of an open structure that may change without changing the other; None if it cannot."""
    if isinstance(before, Approximate) and before.folder == folder and isinstance(before.built, ScannIndex):
        return copy.copy(before.built)  # Its changes replace arrays.
    return None
