"""Start and end of a command: flags, clear errors, exit status."""

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
# Text that TensorFlow adds around the reason of an error.
_OPERATION = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")
# absl's names of types in plain words. A text field accepts any text, so the "string" that fails is a
# ConfigDict.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "string": "a dict of Python"}
_LESS_MEMORY = (
    "Take smaller batches, --config.data.classes_per_batch, --config.train.micro_batch_size or"
    " --config.evaluation.batch_size; a smaller model, or smaller images, --config.data.image_size."
)


def run(
    main: Callable[[Sequence[str]], Any],
    *,
    parse: Callable[[list[str]], list[str]] | None = None,
    words: bool = False,
) -> None:
    """Parses flags and runs `main`. Bad input prints its message and exits with status 1, Ctrl-C with 130.

    Args:
        main: takes the arguments that remain after the flags.
        parse: sets the flags from a command line and returns the remaining arguments. None: `parse_flags`,
            after handling `--help`.
        words: whether `main` takes words beside the flags, as in `tfrank-index duplicates`.
    """
    try:
        parse = parse or functools.partial(_parse_with_help, main.__module__)
        app.run(functools.partial(_main, main, words), flags_parser=parse)
    except (InputError, OSError) as error:
        # The message of any OSError, such as a full disk, names the file and the reason.
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        reason = str(error).strip().splitlines()[0]
        print(f"Error: Memory ran out ({re.sub(_OPERATION, '', reason)}). {_LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def _main(main, words, argv):
    # At the default level TensorFlow reports every file that it writes.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    if argv[1:] and not words:
        raise InputError(f"What is {argv[1]!r}? Flags begin with -- and have no spaces around =.")
    return main(argv)


def usage(program: str) -> str:
    """Returns the description and the flags of a program, given by its module name."""
    # absl knows the module that Python was started with by this name.
    name = sys.argv[0] if program == "__main__" else program
    return f"\n{sys.modules[program].__doc__}\nflags:\n{flags.FLAGS.module_help(name)}"


def _parse_with_help(program, argv):
    if HELP & set(argv):
        print(usage(program))
        sys.exit(0)
    return parse_flags(argv)


def parse_flags(argv: list[str]) -> list[str]:
    """Sets the flags from a command line; returns the remaining arguments. InputError if a flag is bad."""
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
    """Returns an error of absl as an InputError without Python terms."""
    name, given, reason = re.match(r"flag --(.*?)=(.*?): (.*)", str(error), re.DOTALL).groups()
    if given == "=":
        return InputError(f"Flags have no spaces around =. Write --{name}=VALUE")
    expected = _TYPES.get(flags.FLAGS[name].flag_type())
    field = name if name.startswith("config.") else f"--{name}"
    return checks.invalid(field, expected, given) if expected else InputError(f"--{name}={given}: {reason}.")
