"""An index for approximate search by FAISS, for machines without ScaNN. It has the calls of `ScannIndex`."""

import hashlib
import importlib.util
import json
import math
import os
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.evaluation.search.exhaustive import exact, share_found
from tfrank.evaluation.search.neighbors import Neighbors

# Files of a saved index.
SETTINGS, CELLS, IDS, NUMBERS = "faiss.json", "faiss.index", "ids.npy", "numbers.npy"
REMEDY = "Install the extra: pip install 'tfrank[faiss]'"
# Number of queries on which the recall is measured, and the factor by which the searched cells grow.
SAMPLE, GROWTH = 1000, 1.25


class Settings(NamedTuple):
    """The search settings of an index.

    Attributes:
        cells: number of cells that the rows are divided into.
        cells_to_search: number of cells searched for a query.
        k: the number of neighbours for which recall was measured.
        recall: the measured share of the exact k nearest that were found, for a sample of queries.
    """

    cells: int
    cells_to_search: int
    k: int
    recall: float


class FaissIndex:
    """A gallery of embeddings and their ids, in order, that can change and is searched by FAISS.

    The rows are divided into cells by k-means (FAISS' IndexIVFFlat). A query is compared with the rows of the
    nearest cells.

    Attributes:
        ids: `[gallery]` strings, one per row.
        settings: the settings of the search, and the measured recall.
    """

    def __init__(self, ids: np.ndarray, settings: Settings, index: Any, numbers: np.ndarray):
        """Called by `build` and `load`; `numbers` has FAISS' number of each row, ascending."""
        self.ids, self.settings, self._index, self._numbers = ids, settings, index, numbers

    @classmethod
    def build(
        cls, embeddings: np.ndarray, *, ids: np.ndarray, target_recall: float = 0.99, k: int = 10
    ) -> "FaissIndex":
        """Builds an index whose measured recall reaches a target.

        A sample of the rows is searched among the others, exactly for comparison. The number of searched
        cells grows by a quarter at a time until the target is reached.

        Args:
            embeddings: `[rows, dim]` float32 of unit norm.
            ids: `[rows]` unique strings.
            target_recall: above 0, up to 1.
            k: number of neighbours for the target.

        Raises:
            InputError: FAISS cannot be imported, or an argument is out of range.
        """
        target = checks.number("target_recall", target_recall, above=0, at_most=1)
        faiss, rows = _faiss(), np.ascontiguousarray(embeddings, np.float32)
        cells = max(1, round(math.sqrt(len(rows))))
        index = faiss.index_factory(rows.shape[1], f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
        index.cp.spherical = True
        index.train(rows)
        index.add(rows)
        settings = Settings(cells, math.ceil(cells / 20), checks.integer("k", k, at_least=1), math.nan)
        built = cls(ids, settings, index, np.arange(len(rows)))
        built._widen(rows, target)
        return built

    def _widen(self, rows: np.ndarray, target: float) -> None:
        """Searches more cells until the recall on a sample of the rows reaches the target."""
        sample = np.sort(np.random.default_rng(0).permutation(len(rows))[:SAMPLE])
        k = min(self.settings.k, len(rows) - 1)
        nearest = exact(rows[sample], rows, k, sample)
        while True:
            # One more, since each row finds itself.
            found = self.search(rows[sample], k + 1)
            others = np.argsort(found.index == sample[:, None], axis=1, kind="stable")[:, :k]
            found = Neighbors(*(np.take_along_axis(values, others, axis=1) for values in found))
            recall = share_found(found, nearest, rows[sample], rows, sample)
            self.settings = self.settings._replace(recall=recall)
            cells, searched = self.settings.cells, self.settings.cells_to_search
            if recall >= target or searched == cells:
                return
            wider = min(cells, math.ceil(GROWTH * searched))
            self.settings = self.settings._replace(cells_to_search=wider)

    def __len__(self) -> int:
        return len(self.ids)

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query, but for those in cells that are not searched.

        If the searched cells have fewer than k rows although there are more, all cells are searched.

        Args:
            queries: `[queries, dim]` of unit norm.
            k: number of neighbours; more than the gallery has means all.
        """
        queries, k = np.ascontiguousarray(queries, np.float32), min(k, len(self))
        similarity, number = self._by_faiss(queries, k, self.settings.cells_to_search)
        if len(short := np.flatnonzero((number < 0).any(axis=1))):
            similarity[short], number[short] = self._by_faiss(queries[short], k, self.settings.cells)
        return Neighbors(np.searchsorted(self._numbers, number), similarity)

    def _by_faiss(self, queries, k, cells):
        return self._index.search(queries, k, params=_faiss().SearchParametersIVF(nprobe=cells))

    def add(self, embeddings: np.ndarray, ids: np.ndarray) -> None:
        """Appends rows, `[rows, dim]` of unit norm, with new ids."""
        first = int(self._numbers.max(initial=-1)) + 1
        numbers = np.arange(first, first + len(ids))
        self._index.add_with_ids(np.ascontiguousarray(embeddings, np.float32), numbers)
        self.ids, self._numbers = np.concatenate([self.ids, ids]), np.append(self._numbers, numbers)

    def delete(self, ids: np.ndarray) -> None:
        """Deletes the rows of these ids; later rows move up."""
        gone = np.isin(self.ids, ids)
        self._index.remove_ids(self._numbers[gone])
        self.ids, self._numbers = self.ids[~gone], self._numbers[~gone]

    def save(self, folder: str) -> None:
        """Writes the index to a new folder."""
        files.make_folder(folder)
        _faiss().write_index(self._index, os.path.join(folder, CELLS))
        np.save(os.path.join(folder, IDS), self.ids, allow_pickle=False)
        np.save(os.path.join(folder, NUMBERS), self._numbers, allow_pickle=False)
        digests = {name: _digest(os.path.join(folder, name)) for name in (CELLS, IDS, NUMBERS)}
        files.write_json(
            os.path.join(folder, SETTINGS), {"settings": self.settings._asdict(), "sha256": digests}
        )

    @classmethod
    def load(cls, folder: str) -> "FaissIndex":
        """Loads the index of a folder, whose checksums are verified first.

        Raises:
            InputError: the index is damaged, or FAISS cannot be imported.
        """
        faiss = _faiss()
        try:
            with open(os.path.join(folder, SETTINGS)) as file:
                stored = json.load(file)
            for name, digest in stored["sha256"].items():
                if _digest(os.path.join(folder, name)) != digest:
                    raise ValueError(f"checksum of {name}")
            ids, numbers = (
                np.load(os.path.join(folder, name), allow_pickle=False) for name in (IDS, NUMBERS)
            )
            return cls(
                ids, Settings(**stored["settings"]), faiss.read_index(os.path.join(folder, CELLS)), numbers
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{folder} is damaged ({error}). Make the index again.") from None


def faiss_problem() -> str:
    """Returns why FAISS cannot be used and what to do; "" if it can be used."""
    return "" if importlib.util.find_spec("faiss") else f"FAISS is not installed. {REMEDY}"


def _faiss() -> Any:
    """Returns FAISS; raises InputError if it cannot be imported."""
    if problem := faiss_problem():
        raise InputError(problem)
    import faiss

    return faiss


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
