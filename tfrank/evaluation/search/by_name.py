"""The searches by name, behind one signature."""

import functools
from collections.abc import Callable

import numpy as np

from tfrank.common import checks
from tfrank.evaluation.search.exhaustive import exact
from tfrank.evaluation.search.neighbors import Neighbors
from tfrank.evaluation.search.scann_index import ScannIndex
from tfrank.evaluation.search.scann_probe import scann_problem


def scann(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    self_index: np.ndarray | None = None,
    *,
    target_recall: float = 0.99,
) -> Neighbors:
    """As `exact`, by a `ScannIndex` that is configured by the gallery's size and built to this recall."""
    return ScannIndex.build(gallery, k=k, target_recall=target_recall).search(queries, k, self_index)


SEARCHES: dict[str, Callable[..., Neighbors]] = {"exact": exact, "scann": scann}


def search(name: str, *, target_recall: float = 0.99) -> Callable[..., Neighbors]:
    """The search of that name: "exact", or "scann" to a recall; exact, and a line that says so, where ScaNN
    cannot run.
    """
    name, why = usable(name)
    if why:
        _say_once(why)
    chosen = SEARCHES[name]
    return functools.partial(scann, target_recall=target_recall) if chosen is scann else chosen


def usable(name: str) -> tuple[str, str]:
    """The search that can be done here, and why where that is not the one asked for, or "".

    Args:
        name: a name of `SEARCHES`.

    Raises:
        InputError: it is none.

    >>> usable("exact")
    ('exact', '')
    """
    if SEARCHES[checks.one_of("neighbors", name, SEARCHES)] is not scann or not (problem := scann_problem()):
        return name, ""
    return "exact", f"Searched exactly, not by ScaNN. {problem}"


@functools.cache
def _say_once(line: str) -> None:
    """Prints a line, the first time."""
    print(line, flush=True)
