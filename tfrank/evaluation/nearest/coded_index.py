"""A gallery whose codes are held in memory; the best of a scan are compared by their full vectors on disk."""

import math
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.common.json_files import record
from tfrank.evaluation.nearest import top_k
from tfrank.evaluation.nearest.checked_arrays import DIGEST, load_array, rows_of, save_arrays
from tfrank.evaluation.nearest.codes import CODES, Coder
from tfrank.evaluation.nearest.depths import DEPTHS, depth_for, held_out
from tfrank.evaluation.nearest.exhaustive import exact, merge_neighbors
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.stored_rows import StoredRows

# Files of a saved index.
SETTINGS, VECTORS = "codes.json", "vectors.f32"
ARRAYS = ("codes.npy", "ids.npy", "learnt.npy")
AGAIN = "Run tfrank index again, which makes it anew."
# Up to so many rows are all compared by their full vectors.
FEWEST_CODED = 1000
# Comparing more than this share of the rows takes longer than reading all one after the other.
MOST_RESCORED = 1 / 4
# Among some of the rows, so many times as many candidates are compared next. With 2, a search for the 10
# nearest of other classes stopped at 93 to 96 % of them; with 4, it finds 99.5 % and more.
GROWTH = 4
# Values that are read from disk at a time: 16 MiB to compare candidates, 64 MiB to search exactly.
RESCORED_VALUES, EXACT_VALUES = 2**22, 2**24


class Depth(NamedTuple):
    """How many candidates are compared by their full vectors.

    Attributes:
        k: the number of neighbours. A search for fewer compares as many candidates.
        rescore: for each of the k so many candidates, those with the nearest codes.
        recall: the measured share of the exact k nearest that were found, for a sample of queries.
    """

    k: int
    rescore: float
    recall: float


class Settings(NamedTuple):
    """The search settings of an index.

    Attributes:
        storage: "float16", "int8" or "binary".
        depths: by ascending k, how many candidates are compared for up to so many neighbours. For more, all
            vectors are read from disk, and the search is exact.
    """

    storage: str
    depths: tuple[Depth, ...]


_DEPTH = record({"k": json_files.whole(1), "rescore": json_files.real(1), "recall": json_files.real(0, 1)})
_SETTINGS = record(
    {
        "storage": json_files.one_of(*CODES),
        "depths": json_files.list_of(_DEPTH, at_most=100),
        "sha256": record(dict.fromkeys(ARRAYS, DIGEST)),
    }
)


class CodedIndex:
    """A gallery of embeddings and their ids that is searched by codes, see `codes`.

    All codes are compared with a query. The rows of the nearest codes are then compared by their full
    vectors, so the similarities of what is found are exact, and only their choice is approximate. How many
    are compared was measured among all rows. Among some of them the nearest may lie farther away, where codes
    tell less: there, ever more are compared, until the nearest stay the same.

    Attributes:
        ids: `[gallery]` strings, one per row.
        rows: `[gallery, dim]` float32 of unit norm, on disk if the index was loaded.
        settings: the settings of the search, and the measured recall.
    """

    def __init__(
        self,
        ids: np.ndarray,
        rows: np.ndarray | StoredRows,
        settings: Settings,
        coder: Coder,
        codes: np.ndarray,
    ):
        """Called by `build` and `load`; `codes` are those of the rows."""
        self.ids, self.rows, self.settings = ids, rows, settings
        self._coder, self._codes = coder, codes

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        *,
        ids: np.ndarray,
        target_recall: float = 0.99,
        storage: str = "binary",
        k: Sequence[int] = DEPTHS,
    ) -> "CodedIndex":
        """Builds an index whose measured recall reaches a target for several numbers of neighbours.

        Scales, medians and the number of candidates are learnt without up to 500 of the rows, which are
        searched for. Up to 1,000 rows are all compared by their full vectors.

        Args:
            embeddings: `[rows, dim]` float32 of unit norm.
            ids: `[rows]` unique strings.
            target_recall: above 0, up to 1.
            storage: "float16", "int8" or "binary".
            k: numbers of neighbours for the target. A search takes the settings of the next larger one.

        Raises:
            InputError: an argument is out of range.
        """
        target = checks.number("target_recall", target_recall, above=0, at_most=1)
        ks = checks.sequence("k", k, checks.integer, at_least=1)
        rows = np.ascontiguousarray(embeddings, np.float32)
        if len(rows) <= FEWEST_CODED:
            coder = Coder.learn(storage, rows)
            return cls(ids, rows, Settings(storage, ()), coder, coder.encode(rows))
        stay, chosen = held_out(len(rows))
        gallery, queries = rows[stay], rows[chosen]
        coder = Coder.learn(storage, gallery)
        codes = coder.encode(rows)
        depths_of = sorted({min(k, len(gallery)) for k in ks})
        needed = coder.needed(queries, codes[stay], exact(queries, gallery, depths_of[-1]).index)
        depths = _depths(needed, depths_of, target, MOST_RESCORED * len(rows))
        return cls(ids, rows, Settings(storage, depths), coder, codes)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes_a_row(self) -> int:
        """Bytes of memory that the code of a row takes."""
        return self._codes[:1].nbytes

    def search(self, queries: np.ndarray, k: int, among: np.ndarray | None = None) -> Neighbors:
        """Returns the k nearest rows of each query, but for those whose codes are not near enough.

        Args:
            queries: `[queries, dim]` of unit norm.
            k: number of neighbours; more than there are rows means all.
            among: the rows to search, ascending, at least one; None: all.

        Raises:
            InputError: `among` has no row.
        """
        if among is not None and not len(among):
            raise checks.invalid("among", "at least one row, or None for all", among)
        queries = np.ascontiguousarray(queries, np.float32)
        size = len(self) if among is None else len(among)
        k = min(k, size)
        depth = depth_for(self.settings.depths, k)
        count = min(round(depth.rescore * depth.k), size) if depth else size
        if count == size or (among is not None and size <= FEWEST_CODED):
            return self._exact(queries, k, np.arange(size) if among is None else among)
        if among is not None:
            return self._among(queries, k, among, depth)
        keys = self._rescored(queries, self._coder.nearest(queries, self._codes, count), k)
        return Neighbors(*top_k.unpack(keys))

    def _among(self, queries: np.ndarray, k: int, among: np.ndarray, depth: Depth) -> Neighbors:
        """The k nearest of some rows, of ever more candidates, until these bring no nearer row."""
        # Of the number that the depth is for: chance alone would often leave one neighbour the same.
        kept = min(depth.k, len(among))
        codes = self._coder.laid_out(self._codes[among])
        keys = np.full([len(queries), kept], top_k.EMPTY)
        left, first, count = np.arange(len(queries)), 0, round(depth.rescore * depth.k)
        while len(left) and count <= MOST_RESCORED * len(among):
            before, some = keys[left], queries[left]
            numbers = self._coder.nearest(some, codes, count)[:, first:]
            keys[left] = now = top_k.merge(before, self._rescored(some, among[numbers], kept))
            left, first, count = left[np.any(now != before, axis=1)], count, GROWTH * count
        index, similarity = (part[:, :k] for part in top_k.unpack(keys))
        if len(left):
            index[left], similarity[left] = self._exact(queries[left], k, among)
        return Neighbors(index, similarity)

    def _exact(self, queries: np.ndarray, k: int, among: np.ndarray) -> Neighbors:
        """The k nearest of some rows, which are read piece by piece."""
        step = max(1, EXACT_VALUES // self.rows.shape[1])
        starts = range(0, len(among), step)
        parts = [exact(queries, self.rows[among[start : start + step]], k) for start in starts]
        found = merge_neighbors(parts, starts, k)
        return Neighbors(among[found.index], found.similarity)

    def _rescored(self, queries: np.ndarray, numbers: np.ndarray, k: int) -> np.ndarray:
        """The keys of the k nearest of the rows `[queries, candidates]`, by their full vectors."""
        keys = np.full([len(queries), k], top_k.EMPTY)
        step = max(1, RESCORED_VALUES // (numbers.shape[1] * self.rows.shape[1]))
        for start in range(0, len(queries), step):
            # Ascending, as they lie on disk.
            some = np.sort(numbers[start : start + step], axis=1)
            similarity = np.einsum("qd,qcd->qc", queries[start : start + step], self.rows[some])
            found = np.sort(top_k.pack(similarity, some), axis=1)[:, :k]
            keys[start : start + step, : found.shape[1]] = found
        return keys

    def save(self, folder: str) -> None:
        """Writes the index to a new folder."""
        files.make_folder(folder)
        rows = np.asarray(self.rows)
        files.check_room(os.path.join(folder, VECTORS), rows.nbytes + self._codes.nbytes)
        digests = save_arrays(folder, dict(zip(ARRAYS, (self._codes, self.ids, self._coder.learnt))))
        depths = [depth._asdict() for depth in self.settings.depths]
        tree = {"storage": self.settings.storage, "depths": depths, "sha256": digests}
        files.write_json(os.path.join(folder, SETTINGS), tree)
        with files.atomic_write(os.path.join(folder, VECTORS)) as file:
            file.write(np.ascontiguousarray(rows, "<f4").data.cast("B"))

    @classmethod
    def load(
        cls, folder: str, ids: np.ndarray, dim: int, read: Callable[[np.ndarray], np.ndarray]
    ) -> "CodedIndex":
        """Opens the index of a folder, for the present rows. Its full vectors stay on disk.

        Args:
            folder: the folder.
            ids: `[rows]` unique strings.
            dim: dimension of the embeddings.
            read: returns the embeddings, float32 of unit norm, of rows that were not there when it was built.

        Raises:
            InputError: the index is damaged, or its full vectors are missing.
        """
        try:
            with files.open_below(folder, VECTORS) as file:
                settings, (codes, known, learnt) = _read(folder, dim)
                if os.fstat(file.fileno()).st_size != 4 * dim * len(known):
                    raise ValueError(f"{VECTORS} has other rows than {ARRAYS[1]}")
                coder, added, place = Coder(settings.storage, learnt), np.empty([0, dim], np.float32), None
                if not np.array_equal(known, ids):
                    place = rows_of(ids, known)
                    if len(new := np.flatnonzero(place < 0)):
                        place[new], added = len(known) + np.arange(len(new)), read(new)
                        codes = np.concatenate([codes, coder.encode(added)])
                    codes = coder.laid_out(codes[place])
                return cls(ids, StoredRows(file, added, place), settings, coder, codes)
        except FileNotFoundError as error:
            name = os.path.basename(error.filename)
            raise InputError(
                f"{folder} has no {name}. Codes are searched together with the full vectors. {AGAIN}"
            ) from None
        except InputError:
            raise
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{folder} is damaged ({error}). {AGAIN}") from None


def _depths(needed: np.ndarray, ks: Sequence[int], target: float, most: float) -> tuple[Depth, ...]:
    """The least number of candidates, up to `most`, that reaches the target for each k, until none does."""
    depths = []
    for k in ks:
        of_k = np.sort(needed[:, :k].ravel())
        # So many of the nearest rows have to be among the candidates.
        count = max(k, int(of_k[math.ceil(target * len(of_k)) - 1]))
        if count > most:
            break
        depths.append(Depth(k, count / k, float((of_k <= count).mean())))
    return tuple(depths)


def _read(folder: str, dim: int) -> tuple[Settings, list[np.ndarray]]:
    """Returns the settings, codes, ids and what was learnt, whose checksums are verified first.

    Raises:
        OSError, ValueError, TypeError: a file is missing or damaged, or they do not fit each other.
    """
    stored = json_files.read(SETTINGS, _SETTINGS, AGAIN, below=folder)
    settings = Settings(stored["storage"], tuple(Depth(**depth) for depth in stored["depths"]))
    arrays = [load_array(folder, name, stored["sha256"][name]) for name in ARRAYS]
    codes, ids, learnt = arrays
    if learnt.shape != (dim,) or learnt.dtype != np.float32 or not np.isfinite(learnt).all():
        raise ValueError(f"{ARRAYS[2]} has other dimensions than the index")
    like = Coder(settings.storage, learnt).encode(np.zeros([1, dim], np.float32))
    if ids.ndim != 1 or ids.dtype.kind != "U" or not len(ids):
        raise ValueError(f"{ARRAYS[1]} has no ids")
    if codes.shape != (len(ids), like.shape[1]) or codes.dtype != like.dtype:
        raise ValueError(f"{ARRAYS[0]} and {ARRAYS[1]} do not fit each other")
    return settings, arrays
