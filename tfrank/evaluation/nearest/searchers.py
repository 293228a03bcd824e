"""The searches, exact, by ScaNN, FAISS and codes, behind one interface; and which of them can run here."""

import functools
import glob
import logging
import os
from typing import Any, Protocol

import numpy as np

from tfrank.common import checks
from tfrank.evaluation.nearest import coded_index, faiss_index, scann_files
from tfrank.evaluation.nearest.coded_index import CodedIndex
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.faiss_index import FaissIndex, faiss_problem
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import TREE_FROM, ScannIndex
from tfrank.evaluation.nearest.scann_probe import scann_problem

_LOG = logging.getLogger(__name__)


class Searcher(Protocol):
    """A gallery of embeddings that is searched, built to a recall and saved to a folder.

    Attributes:
        ids: `[gallery]` the ids of its rows.
        settings: with `depths`, how deep it looks for how many neighbours; none if it is exact.
    """

    ids: np.ndarray
    settings: Any

    @classmethod
    def build(cls, embeddings: np.ndarray, *, ids: np.ndarray, target_recall: float = 0.99) -> "Searcher":
        """Builds it of `[rows, dim]` float32 of unit norm and their unique ids."""

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """Returns the k nearest rows of each query, `[queries, dim]` of unit norm."""

    def save(self, folder: str) -> None:
        """Writes it to a folder, for its `load`; an exact one for that of `ScannIndex`."""


SEARCHERS: dict[str, type[Searcher]] = {
    "exact": ExactIndex,
    "scann": ScannIndex,
    "faiss": FaissIndex,
    "coded": CodedIndex,
}
# Those that evaluate.
SEARCHES = ("exact", "scann")
# The file by which the folder of one is known.
_FILES = {faiss_index.SETTINGS: "faiss", scann_files.MANIFEST: "scann", coded_index.VECTORS: "coded"}


def usable(*names: str) -> tuple[str, str]:
    """The first of these searches that can run here, else "exact"; then also why the others cannot, else "".

    Args:
        names: names in `SEARCHERS`.

    Raises:
        InputError: a name is not in `SEARCHERS`.

    >>> usable("exact")
    ('exact', '')
    """
    problems = {}
    for name in names:
        checks.one_of("search", name, SEARCHERS)
        problem = scann_problem() if name == "scann" else faiss_problem() if name == "faiss" else ""
        if not problem:
            return name, ""
        problems[{"scann": "ScaNN", "faiss": "FAISS"}[name]] = problem
    return "exact", f"Searched exactly, not by {' or '.join(problems)}. {' '.join(problems.values())}"


def for_rows(rows: int, *names: str) -> str:
    """The name of the search for so many rows: "exact" if they are few, else as `_usable` gives it."""
    return _usable(*names) if rows >= TREE_FROM else "exact"


def name_of(folder: str) -> str:
    """The name of the search that was saved to a folder; "" if this version of tfrank cannot read it."""
    return next((name for file, name in _FILES.items() if os.path.exists(os.path.join(folder, file))), "")


def ids_of(folder: str) -> np.ndarray:
    """The ids of the rows of the search that was saved to a folder, mapped from disk.

    Raises:
        OSError, ValueError: they are missing or damaged.
    """
    # ScaNN's lie in a folder of their own.
    paths = [*glob.iglob(os.path.join(glob.escape(folder), "**", "ids.npy"), recursive=True)]
    if len(paths) != 1:
        raise ValueError(f"{folder} has {len(paths)} lists of ids")
    return np.load(paths[0], mmap_mode="r", allow_pickle=False)


def find(
    name: str,
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    self_index: np.ndarray | None = None,
    *,
    target_recall: float = 0.99,
) -> Neighbors:
    """Searches like `exact`, by one of `SEARCHES`; ScaNN is built for these queries to a recall.

    If ScaNN cannot run, logs one line and searches exactly.
    """
    if _usable(name) == "exact":
        return exact(queries, gallery, k, self_index)
    index = ScannIndex.build(
        gallery, k=k, target_recall=target_recall, queries=queries, self_index=self_index
    )
    return index.search(queries, k, self_index)


def _usable(*names: str) -> str:
    """The first of these searches that can run here, else "exact", with a warning."""
    name, why = usable(*names)
    if why:
        _warn_once(why)
    return name


@functools.cache
def _warn_once(line: str) -> None:
    """Logs a line; repeated lines are not logged again."""
    _LOG.warning(line)
