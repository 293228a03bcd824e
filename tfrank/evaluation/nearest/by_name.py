"""The searches by name, with a common signature."""

import functools
import logging
from collections.abc import Callable

import numpy as np

from tfrank.common import checks
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.evaluation.nearest.scann_probe import scann_problem

_LOG = logging.getLogger(__name__)


def scann(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    self_index: np.ndarray | None = None,
    *,
    target_recall: float = 0.99,
) -> Neighbors:
    """Searches like `exact`, by a `ScannIndex` configured by the gallery size and built to this recall."""
    index = ScannIndex.build(
        gallery, k=k, target_recall=target_recall, queries=queries, self_index=self_index
    )
    return index.search(queries, k, self_index)


SEARCHES: dict[str, Callable[..., Neighbors]] = {"exact": exact, "scann": scann}


def search(name: str, *, target_recall: float = 0.99) -> Callable[..., Neighbors]:
    """The search function of that name: "exact", or "scann" built to a recall.

    If ScaNN cannot run, logs one line and returns exact search.
    """
    name, why = usable(name)
    if why:
        _warn_once(why)
    chosen = SEARCHES[name]
    return functools.partial(scann, target_recall=target_recall) if chosen is scann else chosen


def usable(name: str) -> tuple[str, str]:
    """The name of the search that can run here; and the reason if it is not the given one, else "".

    Args:
        name: a name in `SEARCHES`.

    Raises:
        InputError: the name is not in `SEARCHES`.

    >>> usable("exact")
    ('exact', '')
    """
    if SEARCHES[checks.one_of("neighbors", name, SEARCHES)] is not scann or not (problem := scann_problem()):
        return name, ""
    return "exact", f"Searched exactly, not by ScaNN. {problem}"


@functools.cache
def _warn_once(line: str) -> None:
    """Logs a line; repeated lines are not logged again."""
    _LOG.warning(line)
