"""An index for approximate search by ScaNN: it is built to a recall, and can be changed, saved and loaded."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrank.common import checks, tensorflow_log
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import scann_files, top_k
from tfrank.evaluation.nearest.depths import (
    DEPTHS,
    SAMPLE,
    Sample,
    depth_for,
    held_out,
    new_queries,
    recall_of,
)
from tfrank.evaluation.nearest.exhaustive import exact, merge_neighbors
from tfrank.evaluation.nearest.neighbors import Neighbors, checked, float32_rows, matrix
from tfrank.evaluation.nearest.scann_probe import scann_problem
from tfrank.evaluation.nearest.scann_settings import METHODS, Depth, Settings, checked_settings

# Smallest number of rows for a tree. ScaNN's guide (docs/algorithms.md) advises hashing without a tree below
# 100,000 rows. That is slower than exhaustive search on processors that multiply fast: searching 60,502 rows
# of dim 512 among each other takes 27 s by hashing, 18 s exhaustively and 2 s with a tree
# (benchmarks.evaluation).
TREE_FROM = 20_000
# ScaNN's codebooks have 16 entries a block, and need at least as many rows to learn from, without those that
# are held out as queries.
FEWEST_HASHED = 18
# Reordering more than this share of the rows takes longer than exhaustive search.
MOST_REORDERED = 1 / 4
# Factor by which settings grow at a time until the recall is reached.
GROWTH = 1.25
# Queries searched at a time.
BLOCK_QUERIES = 2**13


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
        k: int | Sequence[int] = DEPTHS,
        method: str | None = None,
        queries: np.ndarray | None = None,
        self_index: np.ndarray | None = None,
        seed: int = 0,
    ) -> "ScannIndex":
        """Builds an index whose measured recall reaches a target for several numbers of neighbours.

        A sample of queries is searched exactly for comparison. For each k, the number of searched leaves or
        of reordered candidates grows by a quarter at a time, whichever improves the recall of the k nearest
        more, until the target is reached. If that is impossible, or would reorder over a quarter of the rows,
        the index searches exactly for this k and larger ones.

        Args:
            embeddings: `[rows, dim]` of unit norm, any real type.
            ids: `[rows]` unique integers or strings. None: the row numbers.
            target_recall: above 0, up to 1.
            k: numbers of neighbours for the target, one or several. A search takes the settings of the next
                larger one; a search for more than the largest is exact.
            method: "brute_force", "hashing" or "tree". None: brute force below 20,000 rows, else a tree of
                about sqrt(rows) leaves.
            queries: `[queries, dim]` the queries to come, or typical ones; up to 1,000 of them are the
                sample. If None, up to 1,000 rows, a tenth at most, are searched for in an index that is built
                without them. So are random points that lie as far from these rows as the nearest neighbours
                do. The target is reached for both.
            self_index: `[queries]` the query's own row, which is left out, or -1. None: all -1.
            seed: seed of the sample.

        Raises:
            InputError: a row is not finite, an id is repeated, or the method needs ScaNN and it cannot run.

        >>> index = ScannIndex.build(np.eye(3), ids=np.array(["a", "b", "c"]))
        >>> index.ids[index.search(np.eye(3)[1:2], 1).index].tolist(), index.settings.method
        ([['b']], 'brute_force')
        """
        target = checks.number("target_recall", target_recall, above=0, at_most=1)
        ks = checks.sequence("k", k if isinstance(k, Sequence) else [k], checks.integer, at_least=1)
        embeddings = matrix("embeddings", embeddings)
        named = None if ids is None else _checked_ids(ids, len(embeddings))
        rows = float32_rows("embeddings", embeddings, 0, len(embeddings), named)
        ids = np.arange(len(rows)) if named is None else named
        if method is None:
            method = "tree" if len(rows) >= TREE_FROM else "brute_force"
        index = cls(rows, ids, Settings("brute_force", 0), None, np.arange(0))
        if checks.one_of("method", method, METHODS) == "brute_force" or len(rows) < FEWEST_HASHED:
            return index
        if queries is None:
            stay, chosen = held_out(len(rows), seed)
            sample, gallery = new_queries(rows[chosen], rows[stay], seed), rows[stay]
        else:
            sample, gallery = _drawn(queries, self_index, rows, seed), rows
        leaves = max(1, round(math.sqrt(len(rows)))) if method == "tree" else 0
        searcher = _new_searcher(gallery, leaves)
        tried = cls(
            gallery, np.arange(len(gallery)), Settings(method, leaves), searcher, np.arange(len(gallery))
        )
        depths = _tuned(tried, sorted({min(k, len(gallery)) for k in ks}), target, sample)
        if not depths:
            return index
        searcher = searcher if gallery is rows else _new_searcher(rows, leaves)
        return cls(rows, ids, Settings(method, leaves, depths), searcher, np.arange(len(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def search(self, queries: np.ndarray, k: int, self_index: np.ndarray | None = None) -> Neighbors:
        """The k nearest rows of the gallery: the result of `exact`, except for rows that ScaNN misses.

        If ScaNN finds fewer than k rows although there are more, the query is searched exactly. So are all
        if k is larger than any that the index was tuned for.

        Args:
            queries: `[queries, dim]` of unit norm, any real type.
            k: number of neighbours; more than the gallery has means all.
            self_index: `[queries]` the query's own row, which is left out, or -1. None: all -1.
        """
        k, queries, _, own = checked(queries, self.rows, k, self_index)
        depth = self._depth(k)
        if self._searcher is None or depth is None:
            return exact(queries, self.rows, k, own)
        found = self._by_scann(queries, k, own, depth)
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
            k=[depth.k for depth in self.settings.depths] or DEPTHS,
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
            settings = checked_settings(folder, fields)
            searcher = place and _scann().load_searcher(place, assets_backcompat_shim=False)
        return cls(rows, ids, settings, searcher, row_of)

    @property
    def _held(self) -> int:
        """The number of gallery rows that ScaNN holds; these are the first ones."""
        return int(np.count_nonzero(self._row_of >= 0))

    def _depth(self, k: int) -> Depth | None:
        """How deep to look for k rows, among which deleted ones may be found; None: search exactly."""
        deleted = len(self._row_of) - self._held
        return depth_for(self.settings.depths, k + min(deleted, k))

    def _by_scann(self, queries: np.ndarray, k: int, own: np.ndarray, depth: Depth) -> Neighbors:
        """The nearest rows that ScaNN holds, without deleted rows and the queries' own rows."""
        deleted = len(self._row_of) - self._held
        width = min(k + bool((own >= 0).any()) + min(deleted, k), len(self._row_of))
        parts = []
        for start in range(0, len(queries), BLOCK_QUERIES):
            index, similarity = self._searcher.search_batched_parallel(
                float32_rows("queries", queries, start, start + BLOCK_QUERIES),
                final_num_neighbors=width,
                pre_reorder_num_neighbors=min(max(width, depth.reorder), len(self._row_of)),
                leaves_to_search=depth.leaves_to_search or None,
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


def _new_searcher(rows: np.ndarray, leaves: int) -> Any:
    """Trains ScaNN on the rows, which it copies. It gets no ids: it would save them as a pickle.

    How deep it searches is given at each search.
    """
    builder = _scann().builder(rows, 1, "dot_product")
    if leaves:
        # Allow small leaves: if ScaNN joins small ones, the same rows give another tree every time.
        builder = builder.tree(leaves, leaves, training_sample_size=250_000, min_partition_size=1)
    # From ScaNN's guide: two dimensions per block, and errors parallel to the row count more.
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
    return builder.reorder(len(rows)).build()


def _drawn(queries: np.ndarray, self_index: np.ndarray | None, rows: np.ndarray, seed: int) -> Sample:
    """A sample of the queries, with their own rows."""
    _, queries, _, own = checked(queries, rows, 1, self_index)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(queries))[:SAMPLE])
    some = float32_rows("queries", queries[chosen], 0, len(chosen))
    return Sample(some, own[chosen], np.zeros(len(chosen), int))


def _tuned(index: ScannIndex, ks: Sequence[int], target: float, sample: Sample) -> tuple[Depth, ...]:
    """The first depth that reaches the target as it grows, for each k; without the ks where none does."""
    nearest = exact(sample.queries, index.rows, ks[-1], sample.own)
    leaves, depths = index.settings.leaves, []
    most = max(100, ks[0], int(len(index) * MOST_REORDERED))
    # A twentieth of the leaves, and few candidates.
    searched, reorder, before = math.ceil(leaves / 20), 100, ks[0]
    for k in ks:
        reorder = max(math.ceil(reorder * k / before), math.ceil(1.5 * k))
        depth = _grown(index, Depth(k, searched, min(reorder, most), math.nan), target, sample, nearest)
        if depth is None:
            break
        depths.append(depth)
        searched, reorder, before = depth.leaves_to_search, depth.reorder, k
    return tuple(depths)


def _grown(
    index: ScannIndex, depth: Depth, target: float, sample: Sample, nearest: Neighbors
) -> Depth | None:
    """The first depth from this one on that reaches the target; None if none does."""
    of_k = Neighbors(nearest.index[:, : depth.k], nearest.similarity[:, : depth.k])

    def measured(tried):
        found = index._by_scann(sample.queries, tried.k, sample.own, tried)
        return tried._replace(recall=recall_of(found, of_k, sample, index.rows))

    most = int(len(index) * MOST_REORDERED)
    depth = measured(depth)
    while depth.recall < target:
        wider = []
        if depth.leaves_to_search < index.settings.leaves:
            searched = min(math.ceil(GROWTH * depth.leaves_to_search), index.settings.leaves)
            wider.append(depth._replace(leaves_to_search=searched))
        if depth.reorder < most:
            wider.append(depth._replace(reorder=min(math.ceil(GROWTH * depth.reorder), most)))
        if not wider:
            return None
        depth = max(map(measured, wider), key=lambda tried: tried.recall)
    return depth


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
