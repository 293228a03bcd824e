"""Checks of arrays given by users: embeddings, which get unit norm, their ids, and the row of each query."""

import numpy as np

from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.evaluation.protocols import text_of

# Rows checked and normalised together.
BLOCK = 4096


def checked_embeddings(
    name: str, value: np.ndarray, *, dim: int | None = None, integers: bool = False
) -> np.ndarray:
    """Returns `value` as an array with at least one row of numbers; raises InputError if it is not one.

    A memory map stays on disk.

    Args:
        name: the name of the argument, for the message.
        value: `[rows, dim]` floats.
        dim: the required number of dimensions; None: any.
        integers: whether integers are allowed too.
    """
    rows = np.asarray(value)
    is_number = rows.dtype.kind in ("fiu" if integers else "f") or rows.dtype == "bfloat16"
    if rows.ndim != 2 or 0 in rows.shape or dim not in (None, rows.shape[1]) or not is_number:
        raise InputError(
            f"Invalid value for argument `{name}`. Expected `[rows, {dim or 'dim'}]`"
            f" {'real numbers' if integers else 'floats'}, with at least one row."
            f" Received: {rows.dtype} of shape {rows.shape}"
        )
    return rows


def checked_self_index(self_index: np.ndarray | None, queries: int, gallery: int) -> np.ndarray:
    """Returns `[queries]` the query's own gallery row, or -1; raises InputError if it is not in the gallery.

    >>> checked_self_index(None, 2, 9)
    array([-1, -1])
    """
    own = np.full(queries, -1) if self_index is None else np.asarray(self_index)
    if own.shape != (queries,) or not np.issubdtype(own.dtype, np.integer):
        expected = f"a gallery row, or -1, of each of {queries} queries"
    elif own.min(initial=-1) < -1 or own.max(initial=-1) >= gallery:
        expected = f"rows below {gallery}, the gallery's size, or -1"
    else:
        return own
    raise InputError(
        f"Invalid value for argument `self_index`. Expected {expected}. Received: {own.dtype}"
        f" of shape {list(own.shape)}, from {own.min(initial=0)} to {own.max(initial=0)}"
    )


def zero_note(zeros: int) -> str:
    """A note on this number of zero embeddings; "" if there are none."""
    return f"{zeros:,} embeddings are zero; their similarity to everything is 0." if zeros else ""


def check_unique(name: str, ids: np.ndarray) -> None:
    """Raises InputError, naming an id, if an id is repeated."""
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        twice = names[np.argmax(counts > 1)]
        repeated = len(ids) - len(names)
        raise InputError(
            f"`{name}` has {text_of(twice)!r} more than once ({repeated:,} repeated). Give each"
            " image an id of its own."
        )


def unit_rows(embeddings: np.ndarray, ids: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """The rows in float32 with unit norm, and the number of zero rows.

    Rows that are float32 and of unit norm already keep their bits. If all are, they are not copied.

    Raises:
        InputError: a row is not finite; it is named by its id or, without ids, by its number.
    """
    unit, zeros = embeddings.dtype == np.float32, 0
    for start in range(0, len(embeddings), BLOCK):
        block = _float64(embeddings[start : start + BLOCK])
        norms = _norms(block)
        if not np.isfinite(norms).all():
            _check_block(block, start, ids)
        # The norm of a row of tiny values may be 0 too.
        zero = ~block.any(axis=1) if not norms.all() else np.zeros(len(block), bool)
        zeros += int(np.sum(zero))
        unit = unit and bool(np.all(_is_unit(norms) | zero))
    if unit:
        return embeddings, zeros
    result = np.empty(embeddings.shape, np.float32)
    for start in range(0, len(embeddings), BLOCK):
        block = _float64(embeddings[start : start + BLOCK])
        largest = np.abs(block).max(axis=1, keepdims=True)
        # Divide by the largest value first, so that norms neither underflow nor overflow.
        normalized = l2_normalize(block / np.where(largest > 0, largest, 1))
        kept = _is_unit(_norms(block))[:, None] & (embeddings.dtype == np.float32)
        result[start : start + BLOCK] = np.where(kept, block, normalized)
    return result, zeros


def check_finite(embeddings: np.ndarray, ids: np.ndarray | None = None) -> None:
    """Raises InputError for a row that is not finite, which is named by its id or its number."""
    for start in range(0, len(embeddings), BLOCK):
        _check_block(_float64(embeddings[start : start + BLOCK]), start, ids)


def _check_block(block, start, ids):
    """Raises InputError for a row that is not finite; the block starts at this image."""
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if len(bad):
        number = start + int(bad[0])
        name = f"image {number}" if ids is None else repr(text_of(ids[number]))
        raise InputError(f"The embedding of {name} is not finite. The model may have diverged.")


def _norms(rows):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt(np.einsum("nd,nd->n", rows, rows))


def _is_unit(norms):
    return np.abs(norms - 1) < 1e-6


def _float64(rows):
    with np.errstate(over="ignore"):
        return np.asarray(rows).astype(np.float64)
