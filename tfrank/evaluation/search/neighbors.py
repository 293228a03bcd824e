"""What every search takes and gives: queries and gallery that are checked, and the neighbours found."""

from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError


class Neighbors(NamedTuple):
    """The nearest gallery rows of each query, nearest first.

    Attributes:
        index: `[queries, k]` int64 gallery rows; -1 where there are fewer than k. Where k is more than the
            gallery has rows, there is one column a row.
        similarity: `[queries, k]` float32 cosine; -inf where there are fewer than k.
    """

    index: np.ndarray
    similarity: np.ndarray


def checked(
    queries: np.ndarray, gallery: np.ndarray, k: int, self_index: np.ndarray | None
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """k, queries, gallery and the queries' own rows, -1 for none, if they fit together; else InputError.

    k is at most the gallery's size: what is searched never takes the memory of a larger one.
    """
    k = checks.integer("k", k, at_least=1)
    queries, gallery = matrix("queries", queries), matrix("gallery", gallery)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"Queries have {queries.shape[1]} dimensions and the gallery has {gallery.shape[1]}. Embed both"
            " with the same model."
        )
    k = min(k, len(gallery))
    if self_index is None:
        return k, queries, gallery, np.full(len(queries), -1)
    own = np.asarray(self_index)
    if own.shape != (len(queries),) or own.dtype.kind not in "iu":
        raise checks.invalid(
            "self_index", f"a gallery row, or -1, of each of {len(queries)} queries", self_index
        )
    if own.max() >= len(gallery):
        raise checks.invalid("self_index", f"rows below {len(gallery)}, the gallery's size", own.max())
    return k, queries, gallery, own


def matrix(name: str, rows: np.ndarray) -> np.ndarray:
    """`rows` as an array, of which nothing is read, if it is `[rows, dim]` numbers; InputError otherwise."""
    array = np.asarray(rows)
    if array.ndim != 2 or 0 in array.shape or not (array.dtype.kind in "fiu" or array.dtype == "bfloat16"):
        raise InputError(
            f"Invalid value for argument `{name}`. Expected `[rows, dim]` real numbers, at least one row."
            f" Received: {array.dtype} of shape {array.shape}."
        )
    return array


def float32_rows(
    name: str, array: np.ndarray, start: int, stop: int, ids: np.ndarray | None = None
) -> np.ndarray:
    """Some rows of a matrix in float32 and C order; InputError that names the first one not finite."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array[start:stop], np.float32)
    # The sum of all, which is quick, is finite only if each is.
    if not np.isfinite(rows.sum()) and not (finite := np.isfinite(rows).all(axis=1)).all():
        bad = start + int(np.argmin(finite))
        place = f"Row {bad}" if ids is None else f"The row of id {ids[bad].item()!r}"
        raise InputError(f"{place} of `{name}` is not finite in float32. Leave it out, or embed it again.")
    return rows
