"""The fields of a config in words: for `--help`, and as the page docs/config.md.

    python -m tfrank.run.config_help > docs/config.md

writes the page anew.
"""

import textwrap
from collections.abc import Iterator

from ml_collections import ConfigDict

from tfrank import losses
from tfrank.configs import default
from tfrank.configs.fields import Declaration, Field, fields_of, written

_WIDTH = 100


def losses_text(path: str) -> str:
    """Lists the losses that may follow the colon of `--config`, each with its fields and their defaults."""
    example = f"--config={path}:fast_ap --config.loss.num_bins=10"
    lines = [f"Losses, after the colon, and their fields: {example}", ""]
    for name in losses.NAMES:
        words = f"{name:26}  {_parameters(name)}".rstrip()
        lines += textwrap.wrap(words, _WIDTH, initial_indent="  ", subsequent_indent=" " * 30)
    return "\n".join(lines)


def fields_text(config: default.Config) -> str:
    """Lists the fields of a config as flags with their values, each below what it means."""
    blocks: list[str] = []
    section = ""
    for field in fields_of(config):
        group = field.path.rpartition(".")[0]
        if group != section:
            blocks, section = [*blocks, ""], group
        if words := _said(field.declaration):
            blocks += textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        blocks += _flags(field)
    return "\n".join(blocks).strip()


def page() -> str:
    """Returns the page of all fields, as Markdown."""
    lines = [
        "# Fields of a config",
        "",
        "A run is defined by the fields below, which a config file sets and the command line may change:",
        "`--config.train.steps=100`. Each is declared once, in `tfrank/configs/sections`, and this page is",
        "made from there by `python -m tfrank.run.config_help`. A resumed run may change the fields marked",
        "with ↻.",
    ]
    section = None
    for field in fields_of(default.get_config()):
        group, _, name = field.path.rpartition(".")
        if group in ("loss", "data.features"):
            continue
        if group != section:
            section = group
            title = f"config.{group}" if group else "config"
            lines += ["", f"## `{title}`", "", "| field | default | meaning |", "|---|---|---|"]
        mark = " ↻" if field.declaration.may_change or field.declaration.path else ""
        default_value = f"`{written(field.value)}`" if field.value != "" else ""
        meaning = _said(field.declaration).replace("|", "\\|")
        lines.append(f"| `{name}`{mark} | {default_value} | {meaning} |")
    lines += [
        "",
        "## `config.loss`",
        "",
        "The loss follows the colon of `--config`, as in `--config=configs/letters.py:smooth_ap`. Its fields",
        "are the hyper-parameters of its class, with these defaults; [losses.md](losses.md) explains them.",
        "",
        "| loss | fields |",
        "|---|---|",
        *(f"| `{name}` | {_parameters(name)} |" for name in losses.NAMES),
        "",
        "`warmup_steps=-1` of `pnp` leaves it open: half of the run from random weights, else 0.",
    ]
    return "\n".join(lines)


def _parameters(name):
    return " ".join(f"{key}={written(value)}" for key, value in losses.hyper_parameters(name).items())


def _said(declaration: Declaration) -> str:
    """Returns what is declared of a field as sentences."""
    named = all(f'"{choice}"' in declaration.meaning for choice in declaration.choices)
    allowed = "" if declaration.choices and named else declaration.allowed()
    added = "; ".join(filter(None, [allowed, declaration.followed()]))
    return f"{declaration.meaning} {added[:1].upper()}{added[1:]}." if added else declaration.meaning


def _flags(field: Field) -> Iterator[str]:
    name, value = f"--config.{field.path}", field.value
    if isinstance(value, ConfigDict) and not all(map(str.isidentifier, value)):
        # Names that a flag cannot have, as those of published results.
        yield f"{name}={{...}}"
    elif isinstance(value, ConfigDict) and value:
        for key, entry in value.items():
            yield f"{name}.{key}={written(entry)}"
    elif isinstance(value, tuple) and any(isinstance(item, str) for item in value):
        # One flag an item: ml_collections reads texts with commas between them as one text.
        for item in value:
            yield f"{name}={item}"
    else:
        yield f"{name}={written(value)}"


if __name__ == "__main__":
    print(page())
