"""The flag `--config`: loaded before all other flags, which may override its fields; shown by `--help`."""

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from tfrank.common import commands
from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.commands import HELP, parse_flags, usage
from tfrank.configs import default
from tfrank.run import config_help

# The folder that tfrank's own configs are below.
PACKAGE = os.path.dirname(os.path.dirname(default.__file__))


def run(main: Callable[[Sequence[str]], Any], default_config: str | Callable[[list[str]], str]) -> None:
    """Runs a command that has the flag `--config`; see `commands.run`.

    Args:
        main: takes the arguments that remain after the flags. Its module has the flags of the command.
        default_config: path of the config if `--config` is not given, or a function from the command line to
            that path. It is not the flag's own default: absl would load that while flags are still being
            defined, and loading could fail.
    """
    commands.run(main, parse=functools.partial(_parse, default_config, main.__module__))


def _parse(default_config, program, argv):
    """Sets the flags and config fields of a command line; returns the remaining arguments."""
    path, argv = _config_first(default_config, argv)
    _check_loss(path, argv)
    config = _load(path)
    if HELP & set(argv):
        _print_help(path, config, program)
        sys.exit(0)
    for argument in argv:
        if argument.startswith("--config."):
            _check_field(config, argument.split("=", 1)[0].removeprefix("--config."))
    return parse_flags(argv)


def _load(path):
    """Loads the config at a path, with the loss after its colon. Raises InputError if that fails."""
    file = path.split(":")[0]
    if not os.path.isfile(file):
        raise InputError(f"There is no config file {file!r}. Give one, as in --config=configs/digits.py")
    # Hides ml_collections' warning of a config that is None: an error is raised below instead.
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        config = flags.FLAGS["config"].parser.parse(path)
    # The file is the user's own code, which can raise any error.
    except Exception as error:
        raise _why_not_loaded(error, path) from None
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config() of the config {file} returns no ConfigDict. End it by: return config")
    return config


def _why_not_loaded(error, path):
    """Returns the error for a config file that fails, with the line where it failed."""
    if "Error whilst parsing config file" in str(error):  # ml_collections puts the traceback inside.
        error = error.__context__
    if isinstance(error, InputError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"line {frame.lineno}, " for frame in frames if frame.filename == path.split(":")[0]]
    # ml_collections lists all fields with their values before its suggestion.
    said = re.sub(r"Other fields present: .*?(?=Did you mean|$)", "", str(error).strip('"'), flags=re.DOTALL)
    said = " ".join(said.replace("module 'config_config'", "the file").split())
    return InputError(
        f"The config {_file_of(path)} cannot be loaded: {''.join(lines[-1:])}{type(error).__name__}: {said}"
    )


def _check_loss(path, argv):
    """Raises InputError if the loss is set as if it were a field."""
    for argument in argv:
        name = argument.removeprefix("--config.loss=")
        if name != argument:
            raise InputError(
                "Losses differ in their fields, so a loss is chosen with the config. Write"
                f" --config={_file_of(path)}:{name} in place of {argument}"
            )


def _print_help(path, config, program):
    """Prints what the command does, its flags, the losses and all fields of the config."""
    print(usage(program))
    print(f"\n{config_help.losses_text(default.LOSS_RECIPES, _file_of(path))}")
    print(f"\nFields of {_file_of(path)}, for any of which another value may be given:\n")
    print(config_help.fields_text(config.to_dict(), inspect.getsource(default.get_config)))


def _file_of(path):
    """Returns the path of a config without the loss, relative if it lies below the current folder."""
    file = re.sub(r"(\.py):.*$", r"\1", path)
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _config_first(default_config, argv):
    """Returns the value of `--config` and the command line with it first: overrides need it parsed."""
    path, rest, arguments = None, [], iter(argv[1:])
    for argument in arguments:
        if argument in ("--config", "-config"):
            path = next(arguments, "")
        elif argument.startswith("--config="):
            path = argument.removeprefix("--config=")
        else:
            rest.append(argument)
    if path is None:
        path = default_config(rest) if callable(default_config) else default_config
    path = _found(path)
    argv = [argv[0], f"--config={path}", *rest]
    sys.argv[:] = argv  # ml_collections looks for overrides there.
    return path, argv


def _found(path):
    """Returns the path of a config; where there is no such file, that of tfrank's own of the same path.

    So `--config=configs/sop.py` works in any folder.
    """
    own = os.path.join(PACKAGE, path)
    is_own = not os.path.isfile(path.split(":")[0]) and os.path.isfile(own.split(":")[0])
    return own if is_own else path


def _check_field(config, field):
    """Raises InputError if a config has no such field."""
    done, node = "config", config
    for name in field.split("."):
        if not isinstance(node, ConfigDict):
            raise InputError(f"`{done}` is one value and has no fields. Write --{done}=VALUE")
        if name not in node:
            known = list(node.keys())
            of = f"loss {node.name!r}" if done == "config.loss" and "name" in known else done
            raise InputError(
                f"Unknown config field `config.{field}`.{did_you_mean(name, known)}"
                f" The fields of {of} are: {', '.join(known)}."
            )
        done, node = f"{done}.{name}", node[name]
