"""How a command starts and ends: flags, help, clear errors, exit status."""

import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

from tfrank import config_help
from tfrank.checks import InputError, did_you_mean

_HELP = {f"{dashes}{word}" for dashes in ("-", "--") for word in ("h", "help", "helpshort")}


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
    except flags.Error as error:
        raise InputError(str(error)) from None


def _parse_with_config(default_config, argv):
    path, argv = _config_first(default_config, argv)
    _check_loss(path, argv)
    try:
        if _HELP & set(argv):
            _print_help(path)
            sys.exit(0)
        left = flags.FLAGS(argv)
        flags.FLAGS.config.keys()  # A config that could not be loaded says so when it is first used.
        return left
    except (flags.Error, AttributeError, LookupError, SyntaxError, TypeError, ValueError, OSError) as error:
        for arg in argv:
            if arg.startswith("--config."):
                _check_field(path, arg.split("=", 1)[0].removeprefix("--config."))
        # A config that fails to load is reported with its traceback inside; its last line says why.
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(re.sub(r"^(\w+Error|\[Errno \d+\]):? ", "", reason)) from None


def _check_loss(path, argv):
    """InputError for a loss that is set as if it were a field."""
    for argument in argv:
        name = argument.removeprefix("--config.loss=")
        if name != argument:
            raise InputError(
                "Losses differ in their fields, so a loss is chosen with the config. Write"
                f" --config={_file_of(path)}:{name} in place of {argument}"
            )


def _print_help(path):
    """What the command does, its flags, the losses and all fields of the config."""
    config = flags.FLAGS["config"].parser.parse(path)
    fields = config.to_dict()  # A config that could not be loaded says so here.
    app.usage(shorthelp=True, writeto_stdout=True)
    defaults = sys.modules.get("configs.default")
    if defaults:
        print(f"\n{config_help.losses_text(defaults.LOSS_RECIPES, _file_of(path))}")
        print(f"\nFields of {_file_of(path)}, for any of which another value may be given:\n")
        print(config_help.fields_text(fields, inspect.getsource(defaults.get_config)))


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


def _check_field(path, field):
    """InputError where the config of that path loads, but has no such field."""
    try:
        node = flags.FLAGS["config"].parser.parse(path)
        node.keys()  # As above.
    except Exception:
        return  # The caller reports why.
    done = "config"
    for name in field.split("."):
        known = list(node.keys()) if hasattr(node, "keys") else []
        if name not in known:
            of = f"loss {node.name!r}" if done == "config.loss" and "name" in known else done
            raise InputError(
                f"Unknown config field `config.{field}`.{did_you_mean(name, known)}"
                f" The fields of {of} are: {', '.join(known)}."
            )
        done, node = f"{done}.{name}", node[name]
