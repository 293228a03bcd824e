"""Command lines, each in a process forked from a server that has imported TensorFlow and run nothing of it.

A process of its own takes four seconds to import; a forked one begins where the server stands, and is a
process like any other: of its own group, with its own files for output, to be interrupted and killed.
"""

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PREPARE = ("-m", "tfrank.data.prepare")
# Seconds after which a command has not only a slow machine.
HANGS = 900

_SERVER = multiprocessing.get_context("forkserver")
# What commands import. Modules that define flags are left out: every child runs its own.
_SERVER.set_forkserver_preload(
    [
        *("tfrank.run.comparison", "tfrank.run.experiment", "tfrank.run.report_writer", "tfrank.run.trained"),
        *("tfrank.data.prepare.builder", "sklearn.manifold", "matplotlib.figure", "tests.command_lines"),
    ]
)


class Ended(NamedTuple):
    """How a command ended: its exit status, and what it wrote to its standard streams."""

    status: int
    output: str
    errors: str


class CommandLine:
    """A running `python ARGUMENTS`, with what tests use of `subprocess.Popen`.

    Args:
        arguments: a file, `-m` and a module, or `-c` and code; and the arguments of the program.
        cwd: the folder to run in; programs are relative to it.
        env: the environment; that of the tests if there is none.
    """

    def __init__(self, *arguments: object, cwd: object = ROOT, env: Mapping[str, str] | None = None):
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [os.path.join(self._folder.name, name) for name in ("output", "errors")]
        begun, report = _SERVER.Pipe(duplex=False)
        given = [*map(str, arguments)], str(cwd), dict(os.environ if env is None else env)
        self._process = _SERVER.Process(target=_become, args=(*given, self._paths, report))
        self._process.start()
        report.close()
        # From now on it has its files, and a group of its own: it can be killed with all that it starts.
        begun.recv()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns what it wrote. Kills it if it takes longer than `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(self._process.name, timeout, *self.written())
        return self.written()

    def written(self) -> tuple[str, str]:
        """What it has written so far to its standard output and to its standard error."""
        return tuple(pathlib.Path(path).read_text(errors="backslashreplace") for path in self._paths)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode


def run(*arguments: object, timeout: float = HANGS, **options) -> Ended:
    """Runs a command line to its end; see `CommandLine`."""
    process = CommandLine(*arguments, **options)
    output, errors = process.communicate(timeout)
    return Ended(process.returncode, output, errors)


def run_alone(*arguments: object, timeout: float = HANGS, **options) -> Ended:
    """Runs the same command line as a process that imports everything itself."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, **{"cwd": ROOT, **options}, capture_output=True, text=True, timeout=timeout
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def accept_interrupt() -> None:
    """Lets Ctrl-C interrupt this process. What a shell starts in the background ignores it by default."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _become(arguments, folder, environment, paths, report):
    """Runs a program in this process, as `python` would, and ends it."""
    os.setsid()
    accept_interrupt()
    for descriptor, path in zip((1, 2), paths):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    report.send(None)
    report.close()
    status = 70
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        # What the server found in its own environment.
        tempfile.tempdir = None
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        _run(*arguments)
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        # So `python` ends too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        atexit._run_exitfuncs()  # multiprocessing tidies up then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(program, *arguments):
    if program == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif program == "-m":
        module, *arguments = arguments
        sys.argv = [module, *arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")
