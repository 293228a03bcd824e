"""Text of a config for `--help`: its losses, and every field with its value and the comment above it."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_FIELD = re.compile(r"    config\.([\w.]+) = ")
_GROUP = re.compile(r"    config\.\w+ = ConfigDict\(\)")
_WIDTH = 100


def losses_text(recipes: Mapping[str, Mapping[str, Any]], path: str) -> str:
    """Lists the losses that may follow the colon of `--config`, each with its fields and their defaults.

    >>> print(losses_text({"fast_ap": {"num_bins": 10}}, "configs/digits.py"))
    Losses, after the colon, and their fields: --config=configs/digits.py:fast_ap --config.loss.num_bins=10
    <BLANKLINE>
      fast_ap                     num_bins=10
    """
    name, fields = next((name, fields) for name, fields in recipes.items() if fields)
    field = next(f"{key}={_plain(value)}" for key, value in fields.items())
    example = f"--config={path}:{name} --config.loss.{field}"
    lines = [f"Losses, after the colon, and their fields: {example}", ""]
    for name, fields in recipes.items():
        words = " ".join(f"{key}={_plain(value)}" for key, value in fields.items())
        lines += textwrap.wrap(f"{name:26}  {words}", _WIDTH, initial_indent="  ", subsequent_indent=" " * 30)
    return "\n".join(lines)


def fields_text(config: Mapping[str, Any], source: str) -> str:
    """Lists the fields of a config as flags with their values, each below the comment in the source code.

    Args:
        config: fields and their values; groups are mappings.
        source: code with lines `    config.group.field = ...`, each below a comment, which may cover several
            fields. Fields that the code does not set are left out.

    >>> print(fields_text({"data": {"size": (8, 9)}}, "    # Pixels.\\n    config.data.size = (28,)"))
    # Pixels.
    --config.data.size=8,9
    >>> print(fields_text({"data": {"test": ("a", "b"), "top": {}}}, "    config.data.test = ()"))
    --config.data.test=a
    --config.data.test=b
    """
    blocks, comment = [], []
    for line in source.splitlines():
        if line.startswith("    # "):
            comment.append(line.removeprefix("    # "))
        elif (field := _FIELD.match(line)) and not _GROUP.match(line):
            words = " ".join(comment)
            blocks += textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ")
            blocks += _flags(f"config.{field[1]}", _value_of(config, field[1]))
            comment = []
        elif not line.strip():
            blocks, comment = [*blocks, ""], []
    return "\n".join(blocks).strip()


def _value_of(config, field):
    for name in field.split("."):
        config = config[name]
    return config


def _flags(name, value) -> Iterator[str]:
    if isinstance(value, Mapping) and not all(map(str.isidentifier, value)):
        # Names that a flag cannot have, as those of published results.
        yield f"--{name}={{...}}"
    elif value and isinstance(value, Mapping):
        for key, of_key in value.items():
            yield from _flags(f"{name}.{key}", of_key)
    elif isinstance(value, tuple) and any(isinstance(item, str) for item in value):
        # One flag an item: ml_collections reads texts with commas between them as one text.
        for item in value:
            yield f"--{name}={item}"
    else:
        yield f"--{name}={_plain(value)}"


def _plain(value):
    """Returns a value as it is written on a command line."""
    return ",".join(map(str, value)) or "()" if isinstance(value, tuple) else str(value)
