"""Start and end of a command: flags, clear errors, exit status, and the printing of what is logged."""

import contextlib
import functools
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf
from absl import app, flags
from absl import logging as absl_logging

from tfrank.common import checks, starting
from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.progress import CLEAR

HELP = {f"{dashes}{word}" for dashes in ("-", "--") for word in ("h", "help", "helpshort")}
# Text that TensorFlow adds around the reason of an error.
_OPERATION = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*")
# absl's names of types in plain words. A text field accepts any text, so the "string" that fails is a
# ConfigDict.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "string": "a dict of Python"}


# Control characters, which could move the cursor or hide text, and those that turn the direction of writing.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run(
    main: Callable[[Any], Any],
    *,
    parse: Callable[[list[str]], Any] | None = None,
    less_memory: str = "Close other programs, or take a machine with more memory.",
) -> None:
    """Parses flags and runs `main`. Bad input prints its message and exits with status 1, Ctrl-C with 130.

    Args:
        main: takes what `parse` returns.
        parse: sets the flags from a command line. None: sets absl's flags, handles `--help`, and returns the
            name of the program in a list.
        less_memory: what to do if memory runs out, as a sentence.
    """
    _show_controls()
    try:
        starting.interrupts_are_raised()
        _check_encoding()
        parse = parse or functools.partial(parse_with_help, main.__module__)
        try:
            with _no_lost_interrupt():
                app.run(functools.partial(_main, main), flags_parser=parse)
        finally:
            sys.stdout.flush()  # If there is no room for it, this says so.
    except (InputError, OSError) as error:
        # The message of any OSError, such as a full disk, names the file and the reason.
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        reason = checks.reason(error)
        print(f"Error: Memory ran out ({re.sub(_OPERATION, '', reason)}). {less_memory}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        # Python remembers that it came while text was evaluated, as `namedtuple` does, and would end by the
        # signal. The next evaluation makes it forget that.
        exec("")
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


def _check_encoding() -> None:
    """Raises InputError if names of files are not UTF-8 here: others would not find them."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower() not in ("utf-8", "utf8"):
        raise InputError(
            f"Names of files are read and written as {encoding} here, and not as UTF-8. Set LC_ALL=C.UTF-8,"
            " or PYTHONUTF8=1, in the environment."
        )


def _show_controls() -> None:
    """Makes what is printed show control characters of names, such as escape codes, by their numbers."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:
            line_buffering, encoding = stream.line_buffering, stream.encoding
            stream.flush()
            shown = _Shown(
                stream.buffer, encoding, "backslashreplace", line_buffering=line_buffering, write_through=True
            )
            # The former stream would close the file when it is destroyed.
            shown.former, shown.called = stream, f"the standard {'output' if name == 'stdout' else 'error'}"
            setattr(sys, name, shown)


class _Shown(io.TextIOWrapper):
    """Writes text in which control characters stand as their numbers, but for those of a progress line."""

    former: Any = None
    called = ""

    def write(self, text: str) -> int:
        """Writes text; raises InputError if there is no room."""
        start = "\r" if text.startswith("\r") else ""
        end = CLEAR if text.endswith(CLEAR) else ""
        body = text[len(start) : len(text) - len(end)]
        shown = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), body)
        with self._naming():
            return super().write(start + shown + end)

    def flush(self) -> None:
        """Writes what waits; raises InputError if there is no room."""
        with self._naming():
            super().flush()

    @contextlib.contextmanager
    def _naming(self):
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            # What waits would be written again, in vain, when Python ends.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self.fileno())
            raise InputError(f"Cannot write to {self.called} ({error.strerror}).") from None


@contextlib.contextmanager
def _no_lost_interrupt():
    """Raises Ctrl-C again that came in a destructor or in the callback of a weak reference.

    Python prints what is raised there and goes on.
    """

    def again(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return before(unraisable)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # The command has ended.
        sys.unraisablehook = before


def _main(main, parsed):
    # At the default level TensorFlow reports every file that it writes.
    absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    print_log()
    return main(parsed)


def print_log() -> None:
    """Makes this process print what the modules of tfrank log, information too: each message as it is."""
    logger = logging.getLogger("tfrank")
    logger.handlers, logger.propagate = [_Printer()], False
    logger.setLevel(logging.INFO)


class _Printer(logging.Handler):
    """Prints messages to the standard output of the moment, which may have been redirected."""

    def emit(self, record):
        print(record.getMessage(), flush=True)


def usage(program: str) -> str:
    """Returns the description and the flags of a program, given by its module name."""
    # absl knows the module that Python was started with by this name.
    name = sys.argv[0] if program == "__main__" else program
    return f"\n{sys.modules[program].__doc__}\nflags:\n{flags.FLAGS.module_help(name)}"


def parse_with_help(program: str, argv: list[str], *, words: bool = False) -> list[str]:
    """Handles `--help` for a program, given by its module name, then does what `parse_flags` does."""
    if HELP & set(argv):
        print(usage(program))
        sys.exit(0)
    return parse_flags(argv, words=words)


def check_flags(program: str, action: str, taken: Collection[str]) -> None:
    """Raises InputError if a flag of a program is given that an action of it does not take.

    Args:
        program: module name of the program.
        action: the action, as the user knows it.
        taken: names of the flags that it takes.
    """
    of_program = flags.FLAGS.flags_by_module_dict()[sys.argv[0] if program == "__main__" else program]
    for flag in of_program:
        if flag.present and flag.name not in taken:
            known = ", ".join(f"--{name}" for name in sorted(taken))
            raise InputError(f"{action} takes no --{flag.name}. Leave it out. It takes {known}.")


def parse_flags(argv: list[str], values: flags.FlagValues = flags.FLAGS, *, words: bool = False) -> list[str]:
    """Sets flags from a command line; returns the name of the program, and the words beside the flags.

    Args:
        argv: the command line.
        values: the flags to set.
        words: whether there may be words, as in `tfrank index duplicates`.

    Raises:
        InputError: a flag is unknown or has a bad value, or there is a word and may be none.
    """
    with flag_errors(values):
        program, *rest = values(argv)
    if rest and not words:
        raise InputError(f"{rest[0]!r} is no flag. Flags begin with -- and have no spaces around =.")
    return [program, *rest]


@contextlib.contextmanager
def flag_errors(values: flags.FlagValues) -> Iterator[None]:
    """Replaces absl's errors in setting these flags by an InputError."""
    try:
        yield
    except flags.UnrecognizedFlagError as error:
        hint = did_you_mean(error.flagname, flags.FLAGS)
        raise InputError(f"There is no flag --{error.flagname}.{hint} --help lists them.") from None
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(error, values) from None
    except flags.Error as error:
        raise InputError(f"{error}. --help explains the flags.") from None


def _illegal_value(error, values):
    """Returns an error of absl as an InputError without Python terms."""
    name, given, reason = re.match(r"flag --(.*?)=(.*?): (.*)", str(error), re.DOTALL).groups()
    if given == "=":
        return InputError(f"Flags have no spaces around =. Write --{name}=VALUE")
    expected = _TYPES.get(values[name].flag_type())
    field = name if name.startswith("config.") else f"--{name}"
    return checks.invalid(field, expected, given) if expected else InputError(f"--{name}={given}: {reason}.")
