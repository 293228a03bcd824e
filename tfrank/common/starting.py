"""What a command sets before the imports that take seconds: Ctrl-C, the memory, and what Keras imports."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

PROGRAMS = ("train_main.py", "eval_main.py")
# Options of glibc's mallopt: the least size of what is given back to the system as soon as it is freed, how
# much may lie free at the end, and how many threads at once may have memory of their own, which is cut into
# pieces too small for feature maps.
_KEEPING = {"M_MMAP_THRESHOLD": (-3, 2**31 - 1), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_ARENA_MAX": (-8, 1)}

# What Keras imports if it is installed, for tables, wrappers and figures that no command makes by Keras.
_OPTIONAL_FOR_KERAS = ("matplotlib", "pandas", "sklearn")


def end_on_interrupt() -> None:
    """Makes Ctrl-C end a command of tfrank in one line until `interrupts_are_raised`.

    Raising would not do: some modules replace or swallow what is raised while they are imported.
    """
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def keep_freed_memory() -> None:
    """Makes a command of tfrank keep what it frees, up to 2 GB a piece, for what it allocates next.

    TensorFlow allocates the result of each layer anew. By default Linux has to clear those pages each time,
    which takes up to half of the time in which a CPU embeds photos. Variables of the environment for glibc's
    memory, such as `MALLOC_ARENA_MAX`, come first: with any of them nothing is changed.
    """
    given = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if _is_command() and sys.platform == "linux" and not given:
        # Other C libraries of Linux have no mallopt.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        for option in _KEEPING.values() if mallopt else ():
            mallopt(*option)


@contextlib.contextmanager
def smaller_keras() -> Iterator[None]:
    """Makes Keras, where a command of tfrank imports it, leave out what is optional for Keras.

    That takes two fifths of the time of the import. The command itself imports those modules later as usual.
    """
    left_out = [name for name in _OPTIONAL_FOR_KERAS if _is_command() and name not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]


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
