"""Declaration of the fields of a config: default, meaning, range, and what one that is left open follows.

A section is a dataclass whose fields are declared by `field`. The flags, `--help`, the checks of a run, and
the page of fields in the docs are read from the declarations.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from tfrank.common import checks
from tfrank.common.checks import did_you_mean

# The values of a field that is left open, by its type.
OPEN = -1
OPEN_VALUES = (OPEN, "auto", ())


class ByWeights(NamedTuple):
    """Values of a field that is left open, which follow from the initial weights of the model."""

    pretrained: Any
    random: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declaration:
    """What is declared of a field.

    Attributes:
        meaning: what it is, with its unit, as sentences.
        choices: the allowed values; of a tuple, those of its items. (): any.
        at_least, above, at_most, below: the bounds of a number; of a tuple, those of its items.
        by_weights: what a field that is left open is, by the weights. None: it cannot be left open to them.
        by_data: whether it may be left open, to follow from the training images.
        may_change: whether a resumed run may have another value.
        of_records: whether the records depend on it. It may not change from the start on.
        path: whether it is a path of data, which is compared by its content.
    """

    meaning: str
    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    by_weights: ByWeights | None = None
    by_data: bool = False
    may_change: bool = False
    of_records: bool = False
    path: bool = False

    def check(self, name: str, value: Any, kind: Any) -> None:
        """Raises InputError if a value of this type is none of the allowed ones."""
        bounds = self.bounds()
        if not (self.choices or bounds) or (self.by_data and value in OPEN_VALUES):
            return
        for item in value if isinstance(value, tuple) else (value,):
            if self.choices:
                checks.one_of(name, item, self.choices)
            elif int in (kind, *typing.get_args(kind)):
                checks.integer(name, item, at_least=int(bounds["at_least"]))
            else:
                checks.number(name, item, **bounds)

    def bounds(self) -> dict[str, float]:
        """Returns the bounds that there are, by name."""
        names = ("at_least", "above", "at_most", "below")
        return {name: bound for name in names if (bound := getattr(self, name)) is not None}

    def allowed(self) -> str:
        """Returns the allowed values in words; "" for any.

        >>> Declaration(meaning="", at_least=0, below=1).allowed()
        'at least 0, below 1'
        """
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        return ", ".join(f"{name.replace('_', ' ')} {bound:g}" for name, bound in self.bounds().items())

    def followed(self) -> str:
        """Returns in words what the field follows if it is left open; "" if it cannot be."""
        if self.by_weights:
            pretrained, random = map(written, self.by_weights)
            return f"left open: {pretrained} for pretrained weights, {random} for random ones"
        value = "auto" if self.choices else OPEN
        return f"left open, {value}: follows from the training images" if self.by_data else ""


def field(default: Any, meaning: str, **declared: Any) -> Any:
    """Declares a field of a section; see `Declaration`. A default that is a class is built anew each time."""
    metadata = {"declaration": Declaration(meaning=meaning, **declared)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Section:
    """The base of sections, which are dataclasses with slots.

    A field takes values of its own type alone. An integer is a float, too, and a list is a tuple.
    """

    __slots__ = ()

    if not typing.TYPE_CHECKING:  # Otherwise mypy would allow to set any attribute.

        def __setattr__(self, name: str, value: Any) -> None:
            declared = self.__dataclass_fields__
            if name not in declared:
                hint, known = did_you_mean(name, declared), ", ".join(sorted(declared))
                raise AttributeError(f"There is no field {name!r}.{hint} The fields are: {known}")
            object.__setattr__(self, name, _typed(name, value, declared[name].type))

    def update(self, values: Mapping[str, Any] = types.MappingProxyType({}), /, **more: Any) -> None:
        """Sets several fields."""
        for name, value in {**values, **more}.items():
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values of the fields by their names."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}  # type: ignore[arg-type]


def _typed(name, value, kind):
    """Returns a value as the type of its field. Raises TypeError if it is of another one."""
    plain = typing.get_origin(kind) or kind
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if plain is tuple and isinstance(value, list):
        return tuple(value)
    if plain is ConfigDict and isinstance(value, Mapping):
        return ConfigDict(value)
    if plain is Any or type(value) is plain or (dataclasses.is_dataclass(value) and isinstance(value, plain)):
        return value
    raise TypeError(f"`{name}` takes a value of type {plain.__name__}, not {value!r}")


class Field(NamedTuple):
    """A field of a config: its path, such as "train.steps", its value, its type and its declaration."""

    path: str
    value: Any
    kind: Any
    declaration: Declaration


def fields_of(section: Any, prefix: str = "") -> Iterator[Field]:
    """Yields the fields of a section and of those in it, in the order in which they are declared."""
    for one in dataclasses.fields(section):
        value, path = getattr(section, one.name), f"{prefix}{one.name}"
        declaration = one.metadata.get("declaration", Declaration(meaning=""))
        if dataclasses.is_dataclass(value):
            yield from fields_of(value, f"{path}.")
        else:
            yield Field(path, value, one.type, declaration)


def check(section: Any) -> None:
    """Raises InputError for the first field of a config that is out of its range."""
    for one in fields_of(section):
        one.declaration.check(f"config.{one.path}", one.value, one.kind)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a tree of dicts into one dict, its keys joined by dots.

    >>> flatten({"train": {"steps": 3}, "seed": 0})
    {'train.steps': 3, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def tree(section: Any) -> dict[str, Any]:
    """Returns a section as nested dicts, with lists in place of tuples: what JSON can say."""
    values = ((one.name, getattr(section, one.name)) for one in dataclasses.fields(section))
    return {name: tree(value) if dataclasses.is_dataclass(value) else plain(value) for name, value in values}


def plain(value: Any) -> Any:
    """Returns a value with lists in place of tuples, and dicts in place of ConfigDicts."""
    if isinstance(value, ConfigDict):
        return value.to_dict()
    return [*map(plain, value)] if isinstance(value, tuple) else value


def written(value: Any) -> str:
    """Returns a value as it is written on a command line.

    >>> written((0.5, 1.0)), written(()), written(True)
    ('0.5,1.0', '()', 'True')
    """
    return ",".join(map(str, value)) or "()" if isinstance(value, tuple) else str(value)
