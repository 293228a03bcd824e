"""Conditions on the columns of an index."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrank.common.checks import InputError, did_you_mean

COMPARISONS = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}


def rows_where(table: pa.Table, where: Mapping[str, Any]) -> np.ndarray:
    """Returns which rows of a table meet all conditions, `[rows]` bool.

    Args:
        table: the columns.
        where: by column, the value that it has, a list of values of which it has one, or comparisons by name
            ("eq", "ne", "lt", "le", "gt", "ge"). A row without a value meets no condition.

    Raises:
        InputError: a column or comparison does not exist, or a value is of another type than the column.

    >>> birds = pa.table({"label": ["wren", "robin", "wren"], "width": [640, 480, 320]})
    >>> rows_where(birds, {"label": ["wren", "gull"], "width": {"ge": 400}}).tolist()
    [True, False, False]
    """
    mask = np.ones(table.num_rows, bool)
    for name, condition in where.items():
        if name not in table.column_names:
            hint = did_you_mean(name, table.column_names)
            raise InputError(
                f"There is no column {name!r}.{hint} Columns are: {', '.join(table.column_names)}."
            )
        column = table.column(name)
        try:
            for met in _met(column, condition):
                mask &= pc.fill_null(met, False).to_numpy()
        except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as error:
            raise InputError(
                f"The column {name!r} has values of type {column.type}, not such as {condition!r}."
            ) from error
    return mask


def _met(column, condition):
    """Yields for each part of a condition whether the values of a column meet it."""
    if isinstance(condition, Mapping):
        for comparison, value in condition.items():
            if comparison not in COMPARISONS:
                raise InputError(f"Unknown comparison {comparison!r}. Give one of {', '.join(COMPARISONS)}.")
            yield COMPARISONS[comparison](column, pa.scalar(value, column.type))
    elif isinstance(condition, list | tuple):
        yield pc.is_in(column, pa.array(condition, column.type))
    else:
        yield pc.equal(column, pa.scalar(condition, column.type))
