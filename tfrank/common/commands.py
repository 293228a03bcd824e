"""How a command starts and ends: flags, clear errors, exit status."""

import functools
import logging
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import app, flags
from absl import logging as absl_logging

from tfrank.common import checks
from tfrank.common.checks import InputError, did_you_mean

HELP = {f"{dashes}{word}" for dashes in ("-", "--") for word in ("h", "help", "helpshort")}
# What TensorFlow puts around the reason of an error.
_OPERATION = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")
# What absl calls types, and what people call them. No text is refused: that "string" is a ConfigDict.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "string": "a dict of Python"}
_LESS_MEMORY = (
    "Take smaller batches, --config.data.classes_per_batch, --config.train.micro_batch_size or"
    " --config.evaluation.batch_size; a smaller model, or smaller images, --config.data.image_size."
)


def run(
    main: Callable[[Sequence[str]], Any], *, parse: Callable[[list[str]], list[str]] | None = None
) -> None:
    """Parses flags and runs `main`. Bad input ends with status 1 and its message alone, Ctrl-C with 130.

    Args:
        main: takes what is left of the command line.
        parse: from the command line to what is left of it, once flags have their values; None: that takes
            `--help` too and is `parse_flags` for all else.
    """
    try:
        parse = parse or functools.partial(_parse_with_help, main.__module__)
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


def usage(program: str) -> str:
    """What a program, the name of its module, does, and its flags."""
    # By which absl calls the module that Python was started with.
    name = sys.argv[0] if program == "__main__" else program
    return f"\n{sys.modules[program].__doc__}\nflags:\n{flags.FLAGS.module_help(name)}"


def _parse_with_help(program, argv):
    if HELP & set(argv):
        print(usage(program))
        sys.exit(0)
    return parse_flags(argv)


def parse_flags(argv: list[str]) -> list[str]:
    """What is left of a command line, once flags have their values; InputError for flags that are none."""
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, flags.FLAGS)
        raise InputError(f"There is no flag --{error.flagname}.{hint} --help lists them.") from None
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(error) from None
    except flags.Error as error:
        raise InputError(f"{error}. --help explains the flags.") from None


def _illegal_value(error):
    """An error of absl in words that name nothing of Python's insides."""
    name, given, reason = re.match(r"flag --(.*?)=(.*?): (.*)", str(error), re.DOTALL).groups()
    if given == "=":
        return InputError(f"Flags have no spaces around =. Write --{name}=VALUE")
    expected = _TYPES.get(flags.FLAGS[name].flag_type())
    field = name if name.startswith("config.") else f"--{name}"
    return checks.invalid(field, expected, given) if expected else InputError(f"--{name}={given}: {reason}.")
