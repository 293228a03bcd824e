"""An index for approximate search by FAISS, for machines without ScaNN.

Its files are arrays and their checksums. FAISS' own format is not used: it can name other files, which FAISS
opens for writing.
"""

import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.common.json_files import record
from tfrank.evaluation.nearest.checked_arrays import DIGEST, load_array, rows_of, save_arrays
from tfrank.evaluation.nearest.depths import DEPTHS, Sample, depth_for, held_out, new_queries, recall_of
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.neighbors import Neighbors

# Files of a saved index.
SETTINGS, CENTRES, CELLS, IDS = "faiss_cells.json", "centres.npy", "cells.npy", "ids.npy"
AGAIN = "Make the index again."
REMEDY = "Install the extra: pip install 'tfrank[faiss]'"
# The factor by which the searched cells grow until the recall is reached.
GROWTH = 1.25


class Depth(NamedTuple):
    """How deep the index looks for k neighbours.

    Attributes:
        k: the number of neighbours.
        cells_to_search: number of cells searched for a query.
        recall: the measured share of the exact k nearest that were found, for a sample of queries.
    """

    k: int
    cells_to_search: int
    recall: float


class Settings(NamedTuple):
    """The search settings of an index.

    Attributes:
        cells: number of cells that the rows are divided into.
        depths: by ascending k, how deep the index looks for up to so many neighbours. It searches all cells
            for more.
    """

    cells: int
    depths: tuple[Depth, ...]


_DEPTH = record(
    {
        "k": json_files.whole(1),
        "cells_to_search": json_files.whole(1, 2**24),
        "recall": json_files.real(0, 1),
    }
)
_SETTINGS = record(
    {
        "settings": record(
            {
                "cells": json_files.whole(1, 2**24),
                "depths": json_files.list_of(_DEPTH, at_most=100),
            }
        ),
        "sha256": record(dict.fromkeys((CENTRES, CELLS, IDS), DIGEST)),
    }
)


class FaissIndex:
    """A gallery of embeddings and their ids, in order, that is searched by FAISS.

    The rows are divided into cells by k-means (FAISS' IndexIVFFlat). A query is compared with the rows of the
    nearest cells.

    Attributes:
        ids: `[gallery]` strings, one per row.
        settings: the settings of the search, and the measured recall.
    """

    def __init__(self, ids: np.ndarray, settings: Settings, index: Any, cells: np.ndarray):
        """Called by `build` and `load`; `cells` has the cell of each row."""
        self.ids, self.settings, self._index, self._cells = ids, settings, index, cells

    @classmethod
    def build(
        cls,
        embeddings: np.ndarray,
        *,
        ids: np.ndarray,
        target_recall: float = 0.99,
        k: Sequence[int] = DEPTHS,
    ) -> "FaissIndex":
        """Builds an index whose measured recall reaches a target for several numbers of neighbours.

        A sample of the rows, and points near them, are searched for before these rows are added. For each k,
        the number of searched cells grows by a quarter at a time until the target is reached. Fewer than ten
        rows have no sample, and all cells are searched.

        Args:
            embeddings: `[rows, dim]` float32 of unit norm.
            ids: `[rows]` unique strings.
            target_recall: above 0, up to 1.
            k: numbers of neighbours for the target. A search takes the cells of the next larger one.

        Raises:
            InputError: FAISS cannot be imported, or an argument is out of range.
        """
        target = checks.number("target_recall", target_recall, above=0, at_most=1)
        ks = checks.sequence("k", k, checks.integer, at_least=1)
        faiss, rows = _faiss(), np.ascontiguousarray(embeddings, np.float32)
        cells = max(1, round(math.sqrt(len(rows))))
        index = faiss.index_factory(rows.shape[1], f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
        index.cp.spherical = True
        stay, chosen = held_out(len(rows))
        gallery, no_cells = rows[stay], np.full(len(rows), -1)
        index.train(gallery)
        depths: tuple[Depth, ...] = ()
        if len(chosen):
            tried = cls(ids[stay], Settings(cells, ()), index, _filled(index, gallery, no_cells[stay]))
            sample = new_queries(rows[chosen], gallery)
            depths = tried._tuned(gallery, sorted({min(k, len(stay)) for k in ks}), target, sample)
            index.reset()
        return cls(ids, Settings(cells, depths), index, _filled(index, rows, no_cells))

    def _tuned(self, rows: np.ndarray, ks: Sequence[int], target: float, sample: Sample) -> tuple[Depth, ...]:
        """The first depth that reaches the target as the number of searched cells grows, for each k."""
        nearest = exact(sample.queries, rows, ks[-1])
        cells, searched, depths = self.settings.cells, math.ceil(self.settings.cells / 20), []
        for k in ks:
            of_k = Neighbors(nearest.index[:, :k], nearest.similarity[:, :k])
            while True:
                found = self._searched(sample.queries, k, searched)
                recall = recall_of(found, of_k, sample, rows)
                if recall >= target or searched == cells:
                    break
                searched = min(cells, math.ceil(GROWTH * searched))
            depths.append(Depth(k, searched, recall))
        return tuple(depths)

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
        depth = depth_for(self.settings.depths, k)
        return self._searched(queries, k, depth.cells_to_search if depth else self.settings.cells)

    def _searched(self, queries, k, cells):
        similarity, number = self._by_faiss(queries, k, cells)
        if len(short := np.flatnonzero((number < 0).any(axis=1))):
            similarity[short], number[short] = self._by_faiss(queries[short], k, self.settings.cells)
        return Neighbors(number, similarity)

    def _by_faiss(self, queries, k, cells):
        # PyTorch's part of FAISS, once imported, has put another `search` there, which takes no parameters.
        search = getattr(self._index, "search_numpy", self._index.search)
        return search(queries, k, params=_faiss().SearchParametersIVF(nprobe=cells))

    def save(self, folder: str) -> None:
        """Writes the index, but for the embeddings, to a new folder."""
        files.make_folder(folder)
        centres = self._index.quantizer.reconstruct_n(0, self.settings.cells)
        digests = save_arrays(folder, {CENTRES: centres, CELLS: self._cells, IDS: self.ids})
        depths = [depth._asdict() for depth in self.settings.depths]
        tree = {"settings": {"cells": self.settings.cells, "depths": depths}, "sha256": digests}
        files.write_json(os.path.join(folder, SETTINGS), tree)

    @classmethod
    def load(cls, folder: str, embeddings: np.ndarray, ids: np.ndarray) -> "FaissIndex":
        """Makes the index of a folder again, with the present rows.

        Rows that were there when it was built are in the cells that the folder has for their ids. Others are
        put into the nearest cells.

        Args:
            folder: the folder.
            embeddings: `[rows, dim]` float32 of unit norm.
            ids: `[rows]` unique strings.

        Raises:
            InputError: the index is damaged, or FAISS cannot be imported.
        """
        faiss = _faiss()
        try:
            settings, (centres, cells, known) = _read(folder, embeddings.shape[1])
        except InputError:
            raise
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{folder} is damaged ({error}). {AGAIN}") from None
        quantizer = faiss.IndexFlatIP(embeddings.shape[1])
        quantizer.add(centres)
        index = faiss.IndexIVFFlat(quantizer, *centres.shape[::-1], faiss.METRIC_INNER_PRODUCT)
        place, rows = rows_of(ids, known), np.ascontiguousarray(embeddings, np.float32)
        return cls(ids, settings, index, _filled(index, rows, np.where(place >= 0, cells[place], -1)))


def _filled(index: Any, rows: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Adds rows to their cells, where -1 stands for the nearest; returns the cell of each row."""
    new, cells = cells < 0, cells.astype(np.int64)
    if new.any():
        cells[new] = index.quantizer.search(rows[new], 1)[1][:, 0]
    numbers = np.arange(len(rows))
    index.add_core(len(rows), *map(_faiss().swig_ptr, (rows, numbers, cells)))
    return cells


def _read(folder: str, dim: int) -> tuple[Settings, list[np.ndarray]]:
    """Returns the settings, centres, cells and ids of a folder, whose checksums are verified first.

    Raises:
        OSError, ValueError, TypeError: a file is missing or damaged, or they do not fit each other.
    """
    stored = json_files.read(SETTINGS, _SETTINGS, AGAIN, below=folder)
    depths = tuple(Depth(**depth) for depth in stored["settings"]["depths"])
    settings = Settings(stored["settings"]["cells"], depths)
    arrays = [load_array(folder, name, stored["sha256"][name]) for name in (CENTRES, CELLS, IDS)]
    centres, cells, ids = arrays
    if (
        centres.shape != (settings.cells, dim)
        or centres.dtype != np.float32
        or not np.isfinite(centres).all()
    ):
        raise ValueError(f"{CENTRES} has other cells than {SETTINGS}")
    if cells.ndim != 1 or cells.dtype != np.int64 or ids.shape != cells.shape or ids.dtype.kind != "U":
        raise ValueError(f"{CELLS} and {IDS} do not fit each other")
    if not len(cells) or not 0 <= cells.min() <= cells.max() < settings.cells:
        raise ValueError(f"{CELLS} names cells that do not exist")
    return settings, arrays


def faiss_problem() -> str:
    """Returns why FAISS cannot be used and what to do; "" if it can be used."""
    return "" if importlib.util.find_spec("faiss") else f"FAISS is not installed. {REMEDY}"


def _faiss() -> Any:
    """Returns FAISS; raises InputError if it cannot be imported."""
    if problem := faiss_problem():
        raise InputError(problem)
    import faiss

    return faiss
