"""How a command starts and ends: flags, help, clear errors, exit status."""

import functools
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from tfrank import checks, config_help
from tfrank.checks import InputError, did_you_mean

_HELP = {f"{dashes}{word}" for dashes in ("-", "--") for word in ("h", "help", "helpshort")}
# What TensorFlow puts around the reason of an error.
_OPERATION = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")
# What absl calls types, and what people call them. No text is refused: that "string" is a ConfigDict.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "string": "a dict of Python"}
_LESS_MEMORY = (
    "Take smaller batches, --config.data.classes_per_batch, --config.train.micro_batch_size or"
    " --config.evaluation.batch_size; a smaller model, or smaller images, --config.data.image_size."
)


def run(
    main: Callable[[Sequence[str]], Any], *, default_config: str | Callable[[list[str]], str] | None = None
) -> None:
    """Parses flags and runs `main`. Bad input ends with status 1 and its message alone, Ctrl-C with 130.

    Args:
        main: takes what is left of the command line.
        default_config: path for the flag `--config` where it is not given, or a function from the command
            line to that path. Not the flag's own default: that would be loaded, and could fail, while flags
            are still being defined. None for a command that has no `--config`.
    """
    parse = functools.partial(_parse_with_config, default_config) if default_config else _parse
    try:
        app.run(functools.partial(_main, main), flags_parser=parse)
    except (InputError, OSError) as error:
        # An OSError that nobody foresaw, such as a full disk, still names the file and the reason.
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"Error: Memory ran out ({re.sub(_OPERATION, '', reason)}). {_LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def _main(main, argv):
    # Otherwise TensorFlow reports every file that it writes.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    if argv[1:]:
        raise InputError(f"What is {argv[1]!r}? Flags begin with -- and have no spaces around =.")
    return main(argv)


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, flags.FLAGS)
        raise InputError(f"There is no flag --{error.flagname}.{hint} --help lists them.") from None
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(error) from None
    except flags.Error as error:
        raise InputError(f"{error}. --help explains the flags.") from None


def _parse_with_config(default_config, argv):
    path, argv = _config_first(default_config, argv)
    _check_loss(path, argv)
    config = _load(path)
    if _HELP & set(argv):
        _print_help(path, config)
        sys.exit(0)
    for argument in argv:
        if argument.startswith("--config."):
            _check_field(config, argument.split("=", 1)[0].removeprefix("--config."))
    return _parse(argv)


def _load(path):
    """The config at a path, with the loss after its colon; InputError where its file cannot be loaded."""
    file = path.split(":")[0]
    if not os.path.isfile(file):
        raise InputError(f"There is no config file {file!r}. Give one, as in --config=configs/digits.py")
    # ml_collections warns of a config that is None; below that is an error.
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        config = flags.FLAGS["config"].parser.parse(path)
    # The file is a program of the user's, which can end in any error.
    except Exception as error:
        raise _why_not_loaded(error, path) from None
    if not isinstance(config, ConfigDict):
        raise InputError(f"get_config() of the config {file} returns no ConfigDict. End it by: return config")
    return config


def _why_not_loaded(error, path):
    """What went wrong in a config's file, and in which line of it."""
    if "Error whilst parsing config file" in str(error):  # ml_collections puts the traceback inside.
        error = error.__context__
    if isinstance(error, InputError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"line {frame.lineno}, " for frame in frames if frame.filename == path.split(":")[0]]
    # ml_collections lists all fields with their values, before the likely one.
    said = re.sub(r"Other fields present: .*?(?=Did you mean|$)", "", str(error).strip('"'), flags=re.DOTALL)
    said = " ".join(said.replace("module 'config_config'", "the file").split())
    return InputError(
        f"The config {_file_of(path)} cannot be loaded: {''.join(lines[-1:])}{type(error).__name__}: {said}"
    )


def _illegal_value(error):
    """An error of absl in words that name nothing of Python's insides."""
    name, given, reason = re.match(r"flag --(.*?)=(.*?): (.*)", str(error), re.DOTALL).groups()
    if given == "=":
        return InputError(f"Flags have no spaces around =. Write --{name}=VALUE")
    expected = _TYPES.get(flags.FLAGS[name].flag_type())
    field = name if name.startswith("config.") else f"--{name}"
    return checks.invalid(field, expected, given) if expected else InputError(f"--{name}={given}: {reason}.")


def _check_loss(path, argv):
    """InputError for a loss that is set as if it were a field."""
    for argument in argv:
        name = argument.removeprefix("--config.loss=")
        if name != argument:
            raise InputError(
                "Losses differ in their fields, so a loss is chosen with the config. Write"
                f" --config={_file_of(path)}:{name} in place of {argument}"
            )


def _print_help(path, config):
    """What the command does, its flags, the losses and all fields of the config."""
    app.usage(shorthelp=True, writeto_stdout=True)
    defaults = sys.modules.get("configs.default")
    if defaults:
        print(f"\n{config_help.losses_text(defaults.LOSS_RECIPES, _file_of(path))}")
        print(f"\nFields of {_file_of(path)}, for any of which another value may be given:\n")
        print(config_help.fields_text(config.to_dict(), inspect.getsource(defaults.get_config)))


def _file_of(path):
    """The path of a config without the loss, relative where it lies below."""
    file = re.sub(r"(\.py):.*$", r"\1", path)
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _config_first(default_config, argv):
    """The value of `--config`, and the command line with it in front: overrides need it parsed."""
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
    argv = [argv[0], f"--config={path}", *rest]
    sys.argv[:] = argv  # Which is where ml_collections looks for overrides.
    return path, argv


def _check_field(config, field):
    """InputError where a config has no such field."""
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
