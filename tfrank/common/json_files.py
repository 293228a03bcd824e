"""JSON files that are read back: a declared type and bounds of each field, and one line for what is wrong.

A check takes the name of a field and its value, and returns the value. `record`, `list_of` and `dict_of`
make the check of a tree from those of its fields.

>>> shard = record({"name": text(r"shard-\\d+"), "rows": whole(at_least=1)})
>>> shards = record({"shards": list_of(shard)}, {"model": text()})
>>> parse('{"shards": [{"name": "shard-0", "rows": true}]}', shards, "shards.json", "Build the index again.")
Traceback (most recent call last):
    ...
tfrank.common.checks.InputError: shards.json is damaged (`shards[0].rows`: expected a whole number from 1 to \
9,007,199,254,740,992, not True). Build the index again.
"""

import json
import math
import os
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from tfrank.common import files
from tfrank.common.checks import InputError

Check = Callable[[str, Any], Any]

# The largest file that is read, unless a caller allows more. Parsed, JSON takes up to 24 times as much.
MOST_BYTES = 2**24
# The largest number that every program reads from JSON without rounding.
MOST_WHOLE = 2**53
# Characters of a value that are shown in a message.
_SHOWN = 60


def read(
    path: str, check: Check, remedy: str, *, below: str | None = None, most_bytes: int = MOST_BYTES
) -> Any:
    """Reads a JSON file; returns the value that `check` returns for its content.

    Args:
        path: path of a local file.
        check: the check of the content.
        remedy: what to do if the file is damaged, as a sentence.
        below: a folder that `path` is relative to, in which no link is followed; None: links are followed.
        most_bytes: a larger file is refused.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is no regular file, is too large, cannot be read, or its content fails the check.
    """
    shown = path if below is None else os.path.join(below, path)
    try:
        with files.open_regular(path) if below is None else files.open_below(below, path) as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}). {remedy}") from None
    if len(data) > most_bytes:
        raise InputError(f"{shown} is damaged (it has more than {most_bytes:,} bytes). {remedy}")
    return parse(data, check, shown, remedy)


def parse(data: bytes | str, check: Check, name: str, remedy: str) -> Any:
    """Parses JSON; returns the value that `check` returns for it.

    Args:
        data: the JSON.
        check: the check of the content.
        name: what the JSON is, for messages, such as the path of its file.
        remedy: what to do if it is damaged, as a sentence.

    Raises:
        InputError: it is no JSON, or fails the check.
    """
    try:
        return check("", json.loads(data, parse_constant=_refuse_constant))
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise InputError(f"{name} is damaged ({reason}). {remedy}")


def checked(tree: Any, check: Check, name: str, remedy: str) -> Any:
    """Returns the value that `check` returns for a tree that was parsed already; see `parse`."""
    try:
        return check("", tree)
    except ValueError as error:
        raise InputError(f"{name} is damaged ({error}). {remedy}") from None


def anything(name: str, value: Any) -> Any:
    """Accepts any value."""
    return value


def text(pattern: str = r"(?s).*", expected: str = "") -> Check:
    """Returns the check of text that matches a pattern, which `expected` describes."""
    return _one_that(
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None,
        expected or ("text" if pattern == r"(?s).*" else f"text of the form {pattern}"),
    )


def file_name() -> Check:
    """Returns the check of the name of a file or folder that lies directly in the folder it is looked up in.

    >>> file_name()("part", "../part")
    Traceback (most recent call last):
        ...
    ValueError: `part`: expected the name of a file, without a folder, not '../part'
    """
    return text(r"(?!\.{1,2}\Z)[^/\\\x00-\x1f]{1,255}", "the name of a file, without a folder")


def whole(at_least: int = 0, at_most: int = MOST_WHOLE) -> Check:
    """Returns the check of a whole number within bounds."""
    return _one_that(
        lambda value: type(value) is int and at_least <= value <= at_most,
        f"a whole number from {at_least:,} to {at_most:,}",
    )


def real(at_least: float = -math.inf, at_most: float = math.inf) -> Check:
    """Returns the check of a finite number within bounds. It may be a whole number."""
    bounds = "" if math.isinf(at_least) and math.isinf(at_most) else f" from {at_least:g} to {at_most:g}"
    return _one_that(
        lambda value: type(value) in (int, float) and _is_finite(value) and at_least <= value <= at_most,
        f"a finite number{bounds}",
    )


def one_of(*values: Hashable) -> Check:
    """Returns the check of a value that is one of those given; true is not 1."""
    return _one_that(
        lambda value: any(type(value) is type(one) and value == one for one in values),
        f"one of {', '.join(map(repr, values))}" if values[1:] else repr(values[0]),
    )


def flag() -> Check:
    """Returns the check of true or false."""
    return _one_that(lambda value: type(value) is bool, "true or false")


def none_or(check: Check) -> Check:
    """Returns the check of null or what another check accepts."""
    return lambda name, value: None if value is None else check(name, value)


def list_of(check: Check, *, at_least: int = 0, at_most: int | None = None, different: bool = False) -> Check:
    """Returns the check of a list whose items pass a check.

    Args:
        check: the check of each item.
        at_least, at_most: bounds of the number of items.
        different: whether no item may occur twice.
    """
    most = math.inf if at_most is None else at_most

    def check_all(name, value):
        if not isinstance(value, list) or not at_least <= len(value) <= most:
            least = f" of at least {at_least:,}" if at_least else ""
            raise _unlike(name, f"a list{least}" + (f" of at most {at_most:,}" if at_most else ""), value)
        items = [check(f"{name}[{place}]", item) for place, item in enumerate(value)]
        if different and len(set(items)) < len(items):
            raise _unlike(name, "different items", value)
        return items

    return check_all


def dict_of(check: Check, names: Check = anything) -> Check:
    """Returns the check of an object whose values pass a check, and whose names pass one."""

    def check_all(name, value):
        if not isinstance(value, dict):
            raise _unlike(name, "an object", value)
        return {names(name, key): check(_inside(name, key), item) for key, item in value.items()}

    return check_all


def record(
    fields: Mapping[str, Check], optional: Mapping[str, Check] | None = None, *, others: bool = False
) -> Check:
    """Returns the check of an object with named fields.

    Args:
        fields: the check of each field that has to be there.
        optional: the check of each field that may be missing.
        others: whether there may be further fields, which are returned as they are.
    """
    known = {**fields, **(optional or {})}

    def check_all(name, value):
        if not isinstance(value, dict):
            raise _unlike(name, "an object", value)
        for field in fields:
            if field not in value:
                raise ValueError(f"`{_inside(name, field)}` is missing")
        if not others and (unknown := [field for field in value if field not in known]):
            raise ValueError(f"`{_short(_inside(name, unknown[0]))}` is no field of it")
        return {key: known.get(key, anything)(_inside(name, key), item) for key, item in value.items()}

    return check_all


def _one_that(holds: Callable[[Any], bool], expected: str) -> Check:
    def check(name, value):
        if not holds(value):
            raise _unlike(name, expected, value)
        return value

    return check


def _inside(name: str, key: str) -> str:
    return f"{name}.{_short(key)}" if name else _short(key)


def _unlike(name: str, expected: str, value: Any) -> ValueError:
    where = f"`{name}`: " if name else ""
    return ValueError(f"{where}expected {expected}, not {_short(repr(value))}")


def _short(words: str) -> str:
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")
