"""An index for approximate search by ScaNN: it is built to a recall, and can be changed, saved and loaded."""

import math
import os
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import checks, tensorflow_log
from tfrank.common.checks import InputError
from tfrank.evaluation.search import scann_files, top_k
from tfrank.evaluation.search.exhaustive import exact, merge_neighbors, share_found
from tfrank.evaluation.search.neighbors import Neighbors, checked, float32_rows, matrix
from tfrank.evaluation.search.scann_probe import scann_problem

# Smallest number of rows for a tree. ScaNN's guide (docs/algorithms.md) advises hashing without a tree below
# 100,000 rows. That is slower than exhaustive search on processors that multiply fast: searching 60,502 rows
# of dim 512 among each other takes 27 s by hashing, 18 s exhaustively and 2 s with a tree
# (benchmarks.evaluation).
TREE_FROM = 20_000
METHODS = ("brute_force", "hashing", "tree")
# ScaNN's codebooks have 16 entries a block, and need at least as many rows to learn from.
FEWEST_HASHED = 16
# Number of queries on which the recall is measured.
SAMPLE = 1000
# Reordering more than this share of the rows takes longer than exhaustive search.
MOST_REORDERED = 1 / 4
# Factor by which settings grow at a time until the recall is reached.
GROWTH = 1.25
# Queries searched at a time.
BLOCK_QUERIES = 2**13


class Settings(NamedTuple):
    """The search settings of an index.

    Attributes:
        method: "brute_force", "hashing" (asymmetric hashing, then reordering) or "tree" (the same within
            the leaves that are nearest to a query).
        leaves: number of leaves of the tree; 0 without a tree.
        leaves_to_search: number of leaves searched for a query; 0 without a tree.
        reorder: number of candidates compared in float32; 0 for brute force.
        k: the number of neighbours for which recall was measured.
        recall: the measured share of the exact k nearest that were found, for a sample of queries.
    """

    method: str
    leaves: int
    leaves_to_search: int
    reorder: int
    k: int
    recall: float


class ScannIndex:
    """A gallery of embeddings and their ids, in order, that can change and is searched by ScaNN.

    Until `rebuild`, added rows are searched exactly beside those that ScaNN holds, and deleted rows are
    dropped from its results. Many added or deleted rows make search slower, not less exact. Each `add` or
    `delete` copies all rows, so change many rows in one call.

    Attributes:
        rows: `[gallery, dim]` float32, the gallery.
        ids: `[gallery]` integers or strings, one per row.
        settings: the settings of the search, and the measured recall.
    """

    def __init__(
        self, rows: np.ndarray, ids: np.ndarray, settings: Settings, searcher: Any, row_of: np.ndarray
    ):
        """Called by `build` and `load`; `row_of` has the gallery row, or -1, of each row of the searcher."""
        self.rows, self.ids, self.settings = rows, ids, settings
        self._searcher, self._row_of = searcher, row_of

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        *,
        ids: np.ndarray | None = None,
        target_recall: float = 0.99,
        k: int = 10,
        method: str | None = None,
        queries: np.ndarray | None = None,
        seed: int = 0,
    ) -> "ScannIndex":
        """Builds an index whose measured recall reaches a target.

        A sample of queries is searched exactly for comparison. The number of searched leaves or of reordered
        candidates grows by a quarter at a time, whichever improves the recall of the k nearest more, until
        the target is reached. If that is impossible, or would reorder over a quarter of the rows, the index
        searches by brute force.

        Args:
            embeddings: `[rows, dim]` of unit norm, any real type.
            ids: `[rows]` unique integers or strings. None: the row numbers.
            target_recall: above 0, up to 1.
            k: number of neighbours for the target. Searches for more reorder in proportion.
            method: "brute_force", "hashing" or "tree". None: brute force below 20,000 rows, else a tree of
                about sqrt(rows) leaves.
            queries: `[queries, dim]` typical queries; up to 1,000 of them are the sample. If None, gallery
                rows serve as queries, each searched among the others. The index was trained on them, so the
                measured recall is optimistic.
            seed: seed of the sample.

        Raises:
            InputError: a row is not finite, an id is repeated, or the method needs ScaNN and it cannot run.

        >>> index = ScannIndex.build(np.eye(3), ids=np.array(["a", "b", "c"]))
        >>> index.ids[index.search(np.eye(3)[1:2], 1).index].tolist(), index.settings.method
        ([['b']], 'brute_force')
        """
        target = checks.number("target_recall", target_recall, above=0, at_most=1)
        k = checks.integer("k", k, at_least=1)
        embeddings = matrix("embeddings", embeddings)
        named = None if ids is None else _checked_ids(ids, len(embeddings))
        rows = float32_rows("embeddings", embeddings, 0, len(embeddings), named)
        ids = np.arange(len(rows)) if named is None else named
        if method is None:
            method = "tree" if len(rows) >= TREE_FROM else "brute_force"
        index = cls(rows, ids, Settings("brute_force", 0, 0, 0, k, 1.0), None, np.arange(0))
        if checks.one_of("method", method, METHODS) == "brute_force" or len(rows) < FEWEST_HASHED:
            return index
        settings = _first_settings(method, len(rows), k)
        hashed = cls(rows, ids, settings, _new_searcher(rows, settings), np.arange(len(rows)))
        return index if (tuned := _tuned(hashed, target, queries, seed)) is None else tuned

    def __len__(self) -> int:
        return len(self.rows)

    def search(self, queries: np.ndarray, k: int, self_index: np.ndarray | None = None) -> Neighbors:
        """The k nearest rows of the gallery: the result of `exact`, except for rows that ScaNN misses.

        If ScaNN finds fewer than k rows although there are more, the query is searched exactly.

        Args:
            queries: `[queries, dim]` of unit norm, any real type.
            k: number of neighbours; more than the gallery has means all.
            self_index: `[queries]` the query's own row, which is left out, or -1. None: all -1.
        """
        k, queries, _, own = checked(queries, self.rows, k, self_index)
        if self._searcher is None:
            return exact(queries, self.rows, k, own)
        found = self._by_scann(queries, k, own)
        first = self._held
        # Check for missing results before merging newly added rows, which would hide them.
        wanted = np.minimum(k, first - ((own >= 0) & (own < first)))
        short = np.flatnonzero((found.index >= 0).sum(axis=1) < wanted)
        if first < len(self):
            later = np.where(own >= first, own - first, -1)
            found = merge_neighbors([found, exact(queries, self.rows[first:], k, later)], [0, first], k)
        if len(short):
            found.index[short], found.similarity[short] = exact(queries[short], self.rows, k, own[short])
        return found

    def add(self, embeddings: np.ndarray, ids: np.ndarray) -> None:
        """Appends rows to the gallery.

        Args:
            embeddings: `[rows, dim]` of unit norm, any real type.
            ids: `[rows]` new ids, of the same type as those of the index.
        """
        embeddings = matrix("embeddings", embeddings)
        if embeddings.shape[1] != self.rows.shape[1]:
            raise checks.invalid("embeddings", f"rows of dim {self.rows.shape[1]}", embeddings.shape)
        ids = _checked_ids(ids, len(embeddings), self.ids.dtype.kind)
        if len(known := ids[np.isin(ids, self.ids)]):
            raise InputError(f"The index has the ids {_some(known)} already. Delete them first.")
        rows = float32_rows("embeddings", embeddings, 0, len(embeddings), ids)
        self.rows, self.ids = np.concatenate([self.rows, rows]), np.concatenate([self.ids, ids])

    def delete(self, ids: np.ndarray) -> None:
        """Deletes rows from the gallery; later rows move up.

        Args:
            ids: `[rows]` unique ids, all in the index.
        """
        ids = _checked_ids(ids, np.size(ids), self.ids.dtype.kind)
        if len(unknown := ids[~np.isin(ids, self.ids)]):
            raise InputError(f"The index does not have the ids {_some(unknown)}.")
        stays = ~np.isin(self.ids, ids)
        # The new row of each old row. The last entry, at index -1, is for rows deleted from the gallery that
        # ScaNN still holds.
        moved = np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)
        self.rows, self.ids, self._row_of = self.rows[stays], self.ids[stays], moved[self._row_of]
        if not self._held:
            self._searcher, self._row_of = None, np.arange(0)

    def rebuild(
        self, *, target_recall: float = 0.99, method: str | None = None, seed: int = 0
    ) -> "ScannIndex":
        """Builds a new index of the same rows and ids, all held by ScaNN; arguments as for `build`."""
        return ScannIndex.build(
            self.rows,
            ids=self.ids,
            target_recall=target_recall,
            k=self.settings.k,
            method=method,
            seed=seed,
        )

    def save(self, folder: str) -> None:
        """Writes the index to a folder. If the process is killed, the old index stays.

        The folder may be moved. Only one process at a time may save to it.
        """
        scann_files.save(folder, self.rows, self.ids, self._row_of, self._searcher, self.settings._asdict())

    @classmethod
    def load(cls, folder: str) -> "ScannIndex":
        """Loads the index of a folder. Unpickles nothing and follows no link; `rows` is a memory map.

        All files are read once, to verify their checksums. ScaNN holds its own copy of the rows in memory. If
        another process saves to the folder meanwhile, the old or the new index is loaded.

        Raises:
            InputError: there is no whole index, it has a pickle or a link, or it needs ScaNN, which cannot
                run.
        """
        with scann_files.opened(folder) as (rows, ids, row_of, fields, place):
            settings = _checked_settings(folder, fields)
            searcher = place and _scann().load_searcher(place, assets_backcompat_shim=False)
        return cls(rows, ids, settings, searcher, row_of)

    @property
    def _held(self) -> int:
        """The number of gallery rows that ScaNN holds; these are the first ones."""
        return int(np.count_nonzero(self._row_of >= 0))

    def _by_scann(self, queries: np.ndarray, k: int, own: np.ndarray) -> Neighbors:
        """The nearest rows that ScaNN holds, without deleted rows and the queries' own rows."""
        deleted = len(self._row_of) - self._held
        width = min(k + bool((own >= 0).any()) + min(deleted, k), len(self._row_of))
        settings = self.settings
        reorder = max(width, math.ceil(settings.reorder * max(1, k / settings.k)))
        parts = []
        for start in range(0, len(queries), BLOCK_QUERIES):
            index, similarity = self._searcher.search_batched_parallel(
                float32_rows("queries", queries, start, start + BLOCK_QUERIES),
                final_num_neighbors=width,
                pre_reorder_num_neighbors=min(reorder, len(self._row_of)),
                leaves_to_search=settings.leaves_to_search or None,
            )
            parts.append(self._cleaned(index, similarity, own[start : start + BLOCK_QUERIES], k))
        return Neighbors(*map(np.concatenate, zip(*parts)))

    def _cleaned(self, index: np.ndarray, similarity: np.ndarray, own: np.ndarray, k: int) -> Neighbors:
        """Converts ScaNN's results to gallery rows and keeps the k nearest."""
        # ScaNN pads with its row 0 and similarity NaN.
        rows = np.where(np.isfinite(similarity), self._row_of[index], -1)
        # The query's own row may be in any column, or missing.
        rows = np.where(rows == own[:, None], -1, rows)
        similarity = np.where(rows < 0, np.float32(-np.inf), similarity)
        keys = np.sort(top_k.pack(similarity, rows), axis=1)[:, :k]
        short = [(0, 0), (0, k - keys.shape[1])]
        return Neighbors(*top_k.unpack(np.pad(keys, short, constant_values=top_k.EMPTY)))


def _scann() -> Any:
    """Returns ScaNN's interface for NumPy; raises InputError if it cannot be imported."""
    if problem := scann_problem():
        raise InputError(problem)
    from scann.scann_ops.py import scann_ops_pybind

    tensorflow_log.follow_level(scann_ops_pybind.scann_pybind.__file__)
    return scann_ops_pybind


def _first_settings(method: str, rows: int, k: int) -> Settings:
    """The settings at which tuning starts: a twentieth of the leaves, and few candidates."""
    leaves = max(1, round(math.sqrt(rows))) if method == "tree" else 0
    reorder = min(max(100, math.ceil(1.5 * k)), rows)
    return Settings(method, leaves, math.ceil(leaves / 20), reorder, k, math.nan)


def _checked_settings(folder: str, fields: dict) -> Settings:
    """Returns the settings of a folder; raises InputError if they are invalid."""
    try:
        settings = Settings(**fields)
        checks.one_of("method", settings.method, METHODS)
        for name, least in (("leaves", 0), ("leaves_to_search", 0), ("reorder", 0), ("k", 1)):
            checks.integer(name, getattr(settings, name), at_least=least)
        checks.number("recall", settings.recall, at_least=0, at_most=1)
    except (TypeError, InputError) as error:
        path = os.path.join(folder, scann_files.MANIFEST)
        raise InputError(f"The settings in {path} are damaged ({error}). Build and save it again.") from None
    return settings


def _new_searcher(rows: np.ndarray, settings: Settings) -> Any:
    """Trains ScaNN on the rows, which it copies. It gets no ids: it would save them as a pickle."""
    builder = _scann().builder(rows, min(settings.k, len(rows)), "dot_product")
    if settings.leaves:
        # Allow small leaves: if ScaNN joins small ones, the same rows give another tree every time.
        builder = builder.tree(
            settings.leaves, settings.leaves_to_search, training_sample_size=250_000, min_partition_size=1
        )
    # From ScaNN's guide: two dimensions per block, and errors parallel to the row count more.
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
    return builder.reorder(settings.reorder).build()


def _tuned(index: ScannIndex, target: float, queries: np.ndarray | None, seed: int) -> ScannIndex | None:
    """The index with the first settings that reach the target as they grow; None if none do."""
    rows, k = index.rows, min(index.settings.k, len(index.rows))
    asked = rows if queries is None else matrix("queries", queries)
    sample = np.sort(np.random.default_rng(seed).choice(len(asked), min(SAMPLE, len(asked)), replace=False))
    own = sample if queries is None else np.full(len(sample), -1)
    exact_neighbors = exact(asked[sample], rows, k, own)

    def measured(settings):
        tried = ScannIndex(rows, index.ids, settings, index._searcher, index._row_of)
        found = tried._by_scann(asked[sample], k, own)
        recall = share_found(found, exact_neighbors, asked[sample], rows, own)
        tried.settings = settings._replace(recall=recall)
        return tried

    def grown(count):
        return math.ceil(GROWTH * count)

    most = int(len(rows) * MOST_REORDERED)
    best = measured(index.settings)
    while best.settings.recall < target:
        s = best.settings
        wider = []
        if s.leaves_to_search < s.leaves:
            wider.append(s._replace(leaves_to_search=min(grown(s.leaves_to_search), s.leaves)))
        if s.reorder < most:
            wider.append(s._replace(reorder=min(grown(s.reorder), most)))
        if not wider:
            return None
        best = max(map(measured, wider), key=lambda tried: tried.settings.recall)
    return best


def _checked_ids(ids: np.ndarray, rows: int, kind: str | None = None) -> np.ndarray:
    """Returns `ids` as an array of `rows` unique integers or strings; raises InputError otherwise."""
    array = np.asarray(ids)
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    array = array.astype(np.int64) if array.dtype.kind in "iu" else array
    if array.shape != (rows,) or array.dtype.kind not in (kind or "iU"):
        kinds = {"i": "integers", "U": "strings", None: "integers or strings"}[kind]
        raise InputError(
            f"Invalid value for argument `ids`. Expected {rows} {kinds}. Received: {array.dtype} of shape"
            f" {array.shape}."
        )
    values, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"Each id may be given once. More than once: {_some(values[counts > 1])}.")
    return array


def _some(ids: np.ndarray) -> str:
    """The first few ids, as text."""
    return ", ".join(map(repr, ids[:5].tolist())) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
