"""The flag `--config`: loads a config file, sets its fields from the command line, shows them by `--help`."""

import dataclasses
import functools
import importlib.machinery
import os
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from tfrank.common import commands
from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.commands import HELP, flag_errors, parse_flags, usage
from tfrank.configs import default
from tfrank.configs.default import Config
from tfrank.run import config_help

# Characters that are shown of a long error.
SHOWN = 300
LESS_MEMORY = (
    "Take smaller batches, --config.data.classes_per_batch, --config.train.micro_batch_size or"
    " --config.evaluation.batch_size; a smaller model, or smaller images, --config.data.image_size."
)
# The folder that tfrank's own configs are below.
PACKAGE = os.path.dirname(os.path.dirname(default.__file__))


def run(main: Callable[[Config], Any], default_config: Callable[[], str]) -> None:
    """Runs a command that has the flag `--config`; see `commands.run`.

    Args:
        main: takes the config. Its module has the flags of the command, with `--config` among them.
        default_config: returns the path of the config if `--config` is not given; called when the flags are
            set.
    """
    parse = functools.partial(_parse, default_config, main.__module__)
    commands.run(main, parse=parse, less_memory=LESS_MEMORY)


def _parse(default_config, program, argv):
    """Sets the flags of a command line; returns the config with the fields that the command line sets."""
    values = flags.FLAGS
    values.set_gnu_getopt()  # A field and its value may be two words: --config.seed 1
    with flag_errors(values):
        rest = values([word for word in argv if word not in HELP], known_only=True)
    path = found(default_config() if values.config is None else values.config)
    _check_loss(path, rest)
    config = load(path)
    if HELP & set(argv):
        _print_help(path, config, program)
        sys.exit(0)
    return with_fields(config, rest)


def found(path: str) -> str:
    """Returns the path of a config; if there is no such file, the path of tfrank's own config of that name.

    So `--config=configs/sop.py` works in any folder.
    """
    own = os.path.join(PACKAGE, path)
    is_own = not os.path.isfile(_file_of(path)) and os.path.isfile(_file_of(own))
    return own if is_own else path


def load(path: str) -> Config:
    """Loads the config at a path, `FILE.py` or `FILE.py:LOSS`: returns the result of its `get_config`.

    Raises:
        InputError: there is no such file; or it fails, and then the message has the line and the error.
    """
    file, *loss = path.split(":", 1)
    if not os.path.isfile(file):
        raise InputError(f"There is no config file {file!r}. Give one, as in --config=configs/digits.py")
    loader = importlib.machinery.SourceFileLoader("config_file", file)
    module = types.ModuleType(loader.name)
    module.__file__ = file
    # The file is the user's own code, which can raise any error.
    try:
        loader.exec_module(module)
        config = module.get_config(*loss) if hasattr(module, "get_config") else None
    except InputError:
        raise
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        where = f"line {lines[-1]}, " if lines else ""
        words = textwrap.shorten(str(error), SHOWN, placeholder=" ...")
        raise InputError(
            f"The config {_shown(path)} cannot be loaded: {where}{type(error).__name__}: {words}"
        ) from None
    if not isinstance(config, Config):
        raise InputError(
            f"The config {_shown(path)} has no function get_config(loss) that returns a config. See"
            " tfrank.configs.digits for an example."
        )
    return config


def with_fields(config: Config, argv: Sequence[str]) -> Config:
    """Returns a config with fields from a command line, the name of the program and `--config.field=value`.

    Raises:
        InputError: an argument is none of these, there is no such field, or the value has another type.
    """
    for argument in argv[1:]:
        field = argument.lstrip("-").removeprefix("no").split("=", 1)[0]
        if argument.startswith("-") and field.startswith("config."):
            _check_field(config, field.removeprefix("config."))
    fields = flags.FlagValues()
    fields.set_gnu_getopt()
    # Reads from the command line which fields to define flags for. `_check_field` has refused new ones.
    define = functools.partial(config_flags.DEFINE_config_dataclass, accept_new_attributes=True)
    with flag_errors(fields):
        changed = define("config", config, flag_values=fields, sys_argv=list(argv))
    parse_flags(list(argv), fields)
    return changed.value


def _check_field(config, field):
    """Raises InputError if a config has no such field. A dict may get any entry."""
    done, node = "config", config
    for name in field.split("."):
        known = sorted(one.name for one in dataclasses.fields(node)) if dataclasses.is_dataclass(node) else []
        if isinstance(node, ConfigDict):
            if not name.isidentifier():
                quoted = f"--{done}='{{\"{name}\": VALUE}}'"
                raise InputError(f"`{name}` is no Python name. Write it in quotes: {quoted}")
        elif not known:
            raise InputError(f"`{done}` is one value and has no fields. Write --{done}=VALUE")
        elif name not in known:
            of = f"loss {node.name!r}" if done == "config.loss" else done
            raise InputError(
                f"Unknown config field `config.{field}`.{did_you_mean(name, known)}"
                f" The fields of {of} are: {', '.join(known)}."
            )
        done, node = f"{done}.{name}", getattr(node, name, None)
    if dataclasses.is_dataclass(node):
        raise InputError(f"`{done}` has fields of its own. Write --{done}.FIELD=VALUE")


def _check_loss(path, argv):
    """Raises InputError if the loss is set as if it were a field."""
    for argument in argv:
        name = argument.removeprefix("--config.loss=")
        if name != argument:
            raise InputError(
                "Losses differ in their fields, so a loss is chosen with the config. Write"
                f" --config={_shown(path)}:{name} in place of {argument}"
            )


def _print_help(path, config, program):
    """Prints what the command does, its flags, the losses and all fields of the config."""
    print(usage(program))
    print(f"\n{config_help.losses_text(_shown(path))}")
    print(f"\nFields of {_shown(path)}, each of which can be changed on the command line:\n")
    print(config_help.fields_text(config))


def _file_of(path):
    """Returns the path of a config without the loss."""
    return path.split(":", 1)[0]


def _shown(path):
    """Returns the path of a config without the loss; relative if it is tfrank's own or in this folder."""
    file = os.path.abspath(_file_of(path))
    relative = os.path.relpath(file, PACKAGE if file.startswith(PACKAGE + os.sep) else None)
    return _file_of(path) if relative.startswith("..") else relative
