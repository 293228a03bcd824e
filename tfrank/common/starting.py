"""Ctrl-C while a command starts: one line, as later, where Python would print what it was importing."""

import os
import signal
import sys

PROGRAMS = ("train_main.py", "eval_main.py")


def end_on_interrupt() -> None:
    """Makes Ctrl-C end a command of tfrank in one line until `interrupts_are_raised`.

    Raising would not do: some modules replace or swallow what is raised while they are imported.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupts_are_raised() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_command() -> bool:
    """Whether Python was started with a command of tfrank, and not with a program that uses it."""
    folder, name = os.path.split(os.path.abspath(sys.argv[0] if sys.argv else ""))
    if name == "-m":
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
        return module[:1] == ["tfrank"] or (bool(module) and module[0].startswith("tfrank."))
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return name == "tfrank" or (name in PROGRAMS and folder == checkout)


def _end(*_) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"Interrupted.\n")
    os._exit(130)
