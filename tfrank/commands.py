"""How a command starts and ends: flags, clear errors, exit status."""

import functools
import logging
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

from tfrank.checks import InputError, did_you_mean


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
    try:
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
