"""Argument checks: one exception and one form of message for all user errors."""

import contextlib
import difflib
import functools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

Function = TypeVar("Function", bound=Callable[..., Any])

# Longer words are no misspelt names.
MOST_LETTERS = 100


class InputError(ValueError):
    """Raised for a bad argument, config or file, with one message that needs no stack trace."""

    # AutoGraph re-raises an error out of a tf.function as the same class only if it finds this.
    __init__ = Exception.__init__


def invalid(name: str, expected: str, received: Any) -> InputError:
    """Returns the error for a bad argument, in the form that Keras uses.

    >>> print(invalid("temperature", "a positive float", -1))
    Invalid value for argument `temperature`. Expected a positive float. Received: temperature=-1
    """
    return InputError(
        f"Invalid value for argument `{name}`. Expected {expected}. Received: {name}={received!r}"
    )


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Returns `value` as a float. Raises InputError if it is no finite number within the bounds."""
    bounds = [("above", above), ("of at least", at_least), ("of at most", at_most), ("below", below)]
    bound = " and".join(f" {words} {number:g}" for words, number in bounds if number is not None)
    try:
        result = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        result = math.inf
    outside = (
        (above is not None and result <= above)
        or (at_least is not None and result < at_least)
        or (at_most is not None and result > at_most)
        or (below is not None and result >= below)
    )
    if isinstance(value, bool) or not math.isfinite(result) or outside:
        raise invalid(name, f"a finite number{bound}", value)
    return result


def integer(name: str, value: Any, *, at_least: int) -> int:
    """Returns `value` as an int. Raises InputError if it is no integer from `at_least` to 2^63 - 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < at_least:
        raise invalid(name, f"an integer of at least {at_least}", value)
    if value >= 2**63:
        raise invalid(name, "an integer below 2^63", value)
    return int(value)


def sequence(name: str, value: Any, check: Callable[..., Any], **bounds: Any) -> tuple:
    """Returns `value` as a non-empty tuple, each item checked by `check`: `number` or `integer`."""
    if isinstance(value, str) or not isinstance(value, Iterable) or not (items := tuple(value)):
        raise invalid(name, "a list of numbers", value)
    return tuple(check(name, item, **bounds) for item in items)


def boolean(name: str, value: Any) -> bool:
    """Returns `value` if it is True or False. Raises InputError otherwise."""
    return bool(one_of(name, value, [False, True]))


PositiveFloat = Annotated[float, functools.partial(number, above=0)]
NonNegativeFloat = Annotated[float, functools.partial(number, at_least=0)]
PositiveInt = Annotated[int, functools.partial(integer, at_least=1)]
NonNegativeInt = Annotated[int, functools.partial(integer, at_least=0)]


def arguments(function: Function) -> Function:
    """Makes a function check its arguments by `checks_of`; it gets what the checks return.

    >>> @arguments
    ... def doubled(value: PositiveFloat):
    ...     return 2 * value
    >>> doubled(3)  # The check makes it a float.
    6.0
    """
    known, code = checks_of(function), function.__code__
    positional = code.co_varnames[: code.co_argcount]

    def passed(name, value):
        return known[name](name, value) if name in known else value

    @functools.wraps(function)
    def checked(*args, **options):
        options = {name: passed(name, value) for name, value in options.items()}
        return function(*map(passed, positional, args), *args[len(positional) :], **options)

    return cast(Function, checked)


def checks_of(function: Callable[..., Any]) -> dict[str, Callable[[str, Any], Any]]:
    """The checks of a function's arguments by their annotations, each f(name, value).

    `Annotated[float, check]` names the check. A `bool` and a `Literal` of the allowed values need no name.
    """
    found: dict[str, Callable[[str, Any], Any]] = {}
    for name, kind in get_type_hints(function, include_extras=True).items():
        if kind is bool:
            found[name] = boolean
        elif get_origin(kind) is Literal:
            found[name] = functools.partial(one_of, allowed=get_args(kind))
        elif get_origin(kind) is Annotated:
            found[name] = kind.__metadata__[0]
    return found


@contextlib.contextmanager
def as_fields(group: str, fields: Iterable[str], **names: str) -> Iterator[None]:
    """Replaces argument names in an InputError's message by the config fields that the values come from.

    Args:
        group: group of the config, such as "train".
        fields: arguments with the same name as their field.
        **names: fields of arguments with other names, as argument=field.

    >>> try:
    ...     with as_fields("train", ["momentum"], factor="schedule_factor"):
    ...         raise InputError("`factor` is too large.")
    ... except InputError as error:
    ...     print(error)
    `config.train.schedule_factor` is too large.
    """
    names = {**{field: field for field in fields}, **names}
    with called({name: f"config.{group}.{field}" for name, field in names.items()}):
        yield


@contextlib.contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Replaces argument names in an InputError's message by the names that the user knows.

    >>> try:
    ...     with called({"num_shards": "--shards"}):
    ...         raise InputError("`num_shards` is too large.")
    ... except InputError as error:
    ...     print(error)
    `--shards` is too large.
    """
    try:
        yield
    except InputError as error:
        said = re.sub(r"(?<=[` ])\w+(?=[`=])", lambda found: names.get(found[0], found[0]), str(error))
        raise InputError(said) from None


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """Returns `value` if `allowed` contains it. Raises InputError with the allowed values otherwise."""
    allowed = list(allowed)
    if value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise InputError(f"{invalid(name, f'one of {allowed}', value)}.{hint}")
    return value


def reason(error: object) -> str:
    """Returns the first line of an error or of its message; the name of its class if that is empty.

    >>> reason(ValueError("no number\\nat line 3")), reason(MemoryError())
    ('no number', 'MemoryError')
    """
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ' Did you mean "..."?' for the known word most like `word`, or "" if none is similar.

    Of a long word, which would take long, none is.

    >>> did_you_mean("temprature", ["alpha", "temperature"])
    ' Did you mean "temperature"?'
    """
    words = [str(known_word) for known_word in known] if len(word) <= MOST_LETTERS else []
    near = difflib.get_close_matches(word, words, n=1)
    return f' Did you mean "{near[0]}"?' if near else ""
