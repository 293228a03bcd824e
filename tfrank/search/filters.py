"""Conditions on the columns of an index."""

import datetime
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from tfrank.common.checks import InputError, did_you_mean

COMPARISONS = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
# Characters of a condition that an error repeats.
MOST_SHOWN = 100


def rows_where(table: pa.Table, where: Mapping[str, Any]) -> np.ndarray:
    """Returns which rows of a table meet all conditions, `[rows]` bool.

    A row without a value meets no condition, and a value that is none (None or NaN) is met by no row. A list
    is met by the rows that one of its values is met by.

    Args:
        table: the columns.
        where: by column, the value that it has, a list of values of which it has one, or comparisons by name
            ("eq", "ne", "lt", "le", "gt", "ge"). Dates and times are those of Python, or ISO 8601 texts such
            as "2026-01-31", "2026-01-31T12:30:00" and, for a column with a time zone, "2026-01-31T12:30:00Z".

    Raises:
        InputError: a column or comparison does not exist, or a value is of another type than the column.

    >>> birds = pa.table({"label": ["wren", "robin", "wren"], "width": [640, 480, 320]})
    >>> rows_where(birds, {"label": ["wren", "gull"], "width": {"ge": 400}}).tolist()
    [True, False, False]
    """
    mask = np.ones(table.num_rows, bool)
    for name, condition in where.items():
        if name not in table.column_names:
            hint, columns = did_you_mean(name, table.column_names), ", ".join(table.column_names)
            raise InputError(f"There is no column {name[:MOST_SHOWN]!r}.{hint} Columns are: {columns}.")
        about = f"The column {name!r} has values of type {table.column(name).type}"
        column = _comparable(table.column(name))
        valued = _has_value(column)
        for met in _met(about, column, condition):
            mask &= pc.fill_null(met, False).to_numpy() & valued
    return mask


def _comparable(column):
    """Returns a column in the type that its values are compared in."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_integer(kind) and not types.is_uint64(kind):
        kind = pa.int64()
    elif types.is_timestamp(kind) and kind.unit != "ns":
        kind = pa.timestamp("us", kind.tz)
    elif types.is_time(kind):
        kind = pa.time64("ns" if kind == pa.time64("ns") else "us")
    return column.cast(kind)


def _has_value(column):
    valued = pc.is_valid(column)
    if types.is_floating(column.type):
        valued = pc.and_(valued, pc.invert(pc.fill_null(pc.is_nan(column), True)))
    return valued.to_numpy()


def _met(about, column, condition):
    """Yields for each part of a condition whether the values of a column meet it."""
    if isinstance(condition, Mapping):
        for comparison, value in condition.items():
            if comparison not in COMPARISONS:
                words, known = repr(comparison)[:MOST_SHOWN], ", ".join(COMPARISONS)
                raise InputError(f"Unknown comparison {words}. Give one of {known}.")
            scalar = _scalar(about, value, column.type)
            yield COMPARISONS[comparison](column, scalar)
    elif isinstance(condition, list | tuple):
        scalars = [_scalar(about, value, column.type) for value in condition]
        yield _is_one_of(column, [scalar for scalar in scalars if scalar.is_valid])
    else:
        yield pc.equal(column, _scalar(about, condition, column.type))


def _is_one_of(column, scalars):
    """Returns whether each value equals one of some scalars."""
    if types.is_floating(column.type):
        # -0.0 becomes 0.0: they are equal, and `is_in` takes them for two values.
        column, *scalars = (pc.add(value, pa.scalar(0, column.type)) for value in (column, *scalars))
    # A share of a whole number equals none.
    return pc.is_in(column, pa.array([one for one in scalars if one.type == column.type], column.type))


def _scalar(about: str, value: Any, kind: pa.DataType) -> pa.Scalar:
    """Returns a value of a condition in the type of its column; without a value if it is None or NaN.

    Raises:
        InputError: it is of another type. Nothing is guessed: no number is a date, and no truth a number.
    """
    try:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return pa.scalar(None, kind)
        if types.is_temporal(kind):
            return _time(value, kind)
        if isinstance(value, bool | np.bool_) and not types.is_boolean(kind):
            raise TypeError("a truth is no number")
        if types.is_integer(kind) and isinstance(value, numbers.Real):
            whole = isinstance(value, numbers.Integral) or (float(value).is_integer() and abs(value) < 2**63)
            return pa.scalar(int(value), kind) if whole else pa.scalar(float(value), pa.float64())
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = ascii(value)[:MOST_SHOWN]
        raise InputError(f"{about}, not such as {shown}.{_hint(kind)}") from error


def _time(value, kind):
    """Returns a date or time of Python or NumPy, or an ISO 8601 text, as a scalar."""
    if isinstance(value, datetime.date | datetime.time):
        value = value.isoformat()
    elif isinstance(value, np.datetime64):
        value = str(value)
    elif not isinstance(value, str) and not types.is_duration(kind):
        raise TypeError("a number is no date")
    if types.is_time(kind):
        return pa.scalar(datetime.time.fromisoformat(value), kind)
    return pa.scalar(value, kind) if types.is_duration(kind) else pa.scalar(value).cast(kind)


def _hint(kind):
    """Returns how to write a date or time of this type; "" for other types."""
    if types.is_date(kind):
        return " Write a date as 2026-01-31."
    if types.is_timestamp(kind):
        zone = "Z, or with another zone such as +02:00" if kind.tz else ""
        return f" Write a time as 2026-01-31T12:30:00{zone}."
    return " Write a time as 12:30:00." if types.is_time(kind) else ""
