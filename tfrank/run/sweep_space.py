"""What a sweep searches: fields of the config, each with a range or a list of values."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tfrank.common.checks import InputError, did_you_mean
from tfrank.configs.default import Config
from tfrank.configs.fields import Field, fields_of
from tfrank.run.config_flag import with_fields

# Of `config.data`, what a batch and its images depend on. The records and the classes held out stay.
_OF_BATCHES = frozenset(
    f"data.{name}"
    for name in (
        *("sampler", "classes_per_batch", "examples_per_class", "short_classes", "image_size", "resize"),
        *("crop", "fit", "rotation", "flip", "max_shift"),
    )
)
_FORMS = "FIELD=LOW..HIGH, FIELD=LOW..HIGH:log or FIELD=VALUE,VALUE"


class Searched(NamedTuple):
    """A field that is searched.

    Attributes:
        field: its path, such as "train.learning_rate".
        choices: its values; () for a range.
        low, high: the ends of its range, integers for a field of integers.
        log: whether the range is searched on a logarithmic scale.
    """

    field: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """Returns the value that a trial of Optuna proposes."""
        if self.choices:
            return trial.suggest_categorical(self.field, self.choices)
        suggest = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return suggest(self.field, self.low, self.high, log=self.log)

    def has(self, value: Any) -> bool:
        """Whether a value is one of those that are searched."""
        return value in self.choices if self.choices else self.low <= value <= self.high

    def ends(self) -> Sequence[Any]:
        """The values to check before a sweep: the choices, or the ends of the range."""
        return self.choices or (self.low, self.high)


def parse(words: Sequence[str], config: Config) -> list[Searched]:
    """Returns what a command line searches.

    Args:
        words: as `train.learning_rate=1e-5..1e-2:log` or `train.optimizer=adam,sgd`.
        config: the config whose fields they are.

    Raises:
        InputError: a word has another form, names no field or one that cannot be searched, or a value is bad.

    >>> from tfrank.configs import letters
    >>> parse(["train.learning_rate=1e-5..1e-2:log"], letters.get_config())[0].high
    0.01
    """
    found = [_parse(word, {one.path: one for one in fields_of(config)}, config) for word in words]
    names = [one.field for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--sweep names {name} twice. Give all of its values at once.")
    if not found:
        raise InputError(
            f"Give what to search, once or more: --sweep={_FORMS}, such as"
            " --sweep=train.learning_rate=1e-5..1e-2:log"
        )
    return found


def with_values(config: Config, values: dict[str, Any]) -> Config:
    """Returns the config with fields set to values, checked as those of a command line are."""
    return with_fields(config, ["tfrank", *flags_of(values)])


def flags_of(values: dict[str, Any]) -> list[str]:
    """Returns the flags that set fields to values.

    >>> flags_of({"train.learning_rate": 0.001})
    ['--config.train.learning_rate=0.001']
    """
    return [f"--config.{field}={value}" for field, value in values.items()]


def _parse(word: str, fields: dict[str, Field], config: Config) -> Searched:
    name, equals, text = word.partition("=")
    name = name.removeprefix("config.")
    if not (equals and text):
        raise InputError(f"--sweep={word} is none of {_FORMS}.")
    if name not in fields:
        raise InputError(f"--sweep={word}: there is no field {name}.{did_you_mean(name, fields)}")
    kind, part = fields[name].kind, name.partition(".")[0]
    if kind not in (int, float, str, bool) or (
        part not in ("train", "model", "loss") and name not in _OF_BATCHES
    ):
        raise InputError(
            f"--sweep={word}: {name} cannot be searched. Fields with one value can, of config.train, model"
            " and loss, and those of config.data on batches and augmentation."
        )
    # The two dots of a path are no range.
    if ".." in text and "/" not in text:
        return _range(word, name, text, kind)
    values = [with_values(config, {name: value}) for value in text.split(",")]
    section, _, field = name.partition(".")
    return Searched(name, tuple(getattr(getattr(one, section), field) for one in values))


def _range(word, name, text, kind):
    ends, _, scale = text.partition(":")
    try:
        low, high = map(kind if kind in (int, float) else float, ends.split(".."))
    except ValueError:
        raise InputError(
            f"--sweep={word}: the ends of a range of {name} are {'whole ' * (kind is int)}numbers."
        ) from None
    if kind not in (int, float):
        raise InputError(f"--sweep={word}: {name} has no range. List its values: {name}=VALUE,VALUE")
    if scale not in ("", "log") or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"--sweep={word} is no range. Write {name}=LOW..HIGH, or {name}=LOW..HIGH:log")
    if scale and low <= 0:
        raise InputError(f"--sweep={word}: a logarithmic range begins above 0.")
    return Searched(name, (), low, high, bool(scale))
