"""Input and output of every search: checked queries and gallery, and the neighbours found."""

import functools
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.array_checks import checked_embeddings, checked_self_index

matrix = functools.partial(checked_embeddings, integers=True)


class Neighbors(NamedTuple):
    """The nearest gallery rows of each query, nearest first.

    Attributes:
        index: `[queries, k]` int64 gallery rows; -1 if there are fewer than k. If k exceeds the number of
            gallery rows, there is one column per row.
        similarity: `[queries, k]` float32 cosine; -inf if there are fewer than k.
    """

    index: np.ndarray  # type: ignore[assignment]  # Not the method of tuples.
    similarity: np.ndarray


def checked(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Returns checked k, queries, gallery and own rows (-1 for none); raises InputError if they do not match.

    k is reduced to the gallery size, so that a larger k takes no memory.
    """
    k = checks.integer("k", k, at_least=1)
    queries, gallery = matrix("queries", queries), matrix("gallery", gallery)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"Queries have {queries.shape[1]} dimensions and the gallery has {gallery.shape[1]}. Embed both"
            " with the same model."
        )
    own = checked_self_index(self_index, len(queries), len(gallery))
    return min(k, len(gallery)), queries, gallery, own


def float32_rows(
    name: str, array: np.ndarray, start: int, stop: int, ids: np.ndarray | None = None
) -> np.ndarray:
    """Returns rows of a matrix in float32 and C order; raises InputError naming the first non-finite one."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array[start:stop], np.float32)
    # Fast check first: the sum of all values is finite only if each value is.
    if not np.isfinite(rows.sum()) and not (finite := np.isfinite(rows).all(axis=1)).all():
        bad = start + int(np.argmin(finite))
        place = f"Row {bad}" if ids is None else f"The row of id {ids[bad].item()!r}"
        raise InputError(f"{place} of `{name}` is not finite in float32. Leave it out, or embed it again.")
    return rows
