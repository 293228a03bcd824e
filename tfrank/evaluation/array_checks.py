"""Checks of arrays given by users: embeddings, and the gallery row of each query."""

import numpy as np

from tfrank.common.checks import InputError


def checked_embeddings(name: str, value: np.ndarray, *, dim: int | None = None) -> np.ndarray:
    """Returns `value` as an array with at least one row of floats; raises InputError if it is not one.

    A memory map stays on disk.

    Args:
        name: the name of the argument, for the message.
        value: `[rows, dim]` floats.
        dim: the required number of dimensions; None: any.
    """
    rows = np.asarray(value)
    wanted = f"floats of shape [rows, {'dim' if dim is None else dim}], with at least one row"
    right_dim = rows.ndim == 2 and (rows.shape[1] == dim if dim else rows.shape[1] > 0)
    if not right_dim or not len(rows) or not np.issubdtype(rows.dtype, np.floating):
        raise InputError(
            f"Invalid value for argument `{name}`. Expected {wanted}."
            f" Received: {rows.dtype} of shape {list(rows.shape)}"
        )
    return rows


def checked_self_index(self_index: np.ndarray | None, queries: int, gallery: int) -> np.ndarray:
    """Returns `[queries]` the query's own gallery row, or -1; raises InputError if it is not in the gallery.

    >>> checked_self_index(None, 2, 9)
    array([-1, -1])
    """
    own = np.full(queries, -1) if self_index is None else np.asarray(self_index)
    if own.shape != (queries,) or not np.issubdtype(own.dtype, np.integer):
        expected = f"{queries} integers, one a query"
    elif own.min(initial=-1) < -1 or own.max(initial=-1) >= gallery:
        expected = f"rows of the gallery, from 0 to {gallery - 1}, or -1"
    else:
        return own
    raise InputError(
        f"Invalid value for argument `self_index`. Expected {expected}. Received: {own.dtype}"
        f" of shape {list(own.shape)}, from {own.min(initial=0)} to {own.max(initial=0)}"
    )
