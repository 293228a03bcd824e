"""Command lines, each in a forked child of one process that has imported TensorFlow and run nothing of it.

A process of its own takes seconds to import; a forked one begins where its parent stands. A child's standard
streams are files, so that what C++ writes is captured too.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[1]
PREPARE = "tfrank.data.prepare"


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, and what it wrote to its standard streams."""

    status: int
    output: str
    errors: str


class CommandLines:
    """Runs `python PROGRAM ARGUMENTS`; PROGRAM is a file of the project's root, or the module `PREPARE`."""

    def __init__(self, server: subprocess.Popen):
        self._server = server

    def run(self, program: str, arguments: Sequence[object]) -> Ended:
        """Runs a command in the root of the project and waits until it has ended."""
        self._server.stdin.write(json.dumps([program, [*map(str, arguments)]]) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))


def run_alone(program: str, arguments: Sequence[object]) -> Ended:
    """Runs the same command as a process that imports everything itself."""
    script = ["-m", program] if program == PREPARE else [program]
    command = [sys.executable, *script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def command_lines() -> Iterator[CommandLines]:
    """Starts the process that forks; it ends with the context."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([sys.executable, "-m", "tests.command_lines"], cwd=ROOT, **pipes)
    try:
        yield CommandLines(server)
    finally:
        server.stdin.close()
        server.wait(timeout=60)
        server.stdout.close()


def _serve() -> None:
    """Answers each line of the standard input, a program and its arguments, by how it ended."""
    # What the commands import. Their own modules define flags, and are run anew by each child.
    from tfrank.run import comparison, evaluation_results, experiment, report_writer, trained  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(_forked(*json.loads(line)))), flush=True)


def _forked(program: str, arguments: list[str]) -> Ended:
    # No TemporaryDirectory: the child would remove it as it ends.
    folder = tempfile.mkdtemp()
    paths = [pathlib.Path(folder, name) for name in ("output", "errors")]
    child = os.fork()
    if not child:
        _become(program, arguments, paths)
    _, status = os.waitpid(child, 0)
    output, errors = (path.read_text(errors="backslashreplace") for path in paths)
    shutil.rmtree(folder)
    return Ended(os.waitstatus_to_exitcode(status), output, errors)


def _become(program: str, arguments: list[str], paths: list[pathlib.Path]) -> None:
    """Runs a program in this process, as `python` would, and ends it."""
    status = 70
    try:
        for descriptor, path in zip((1, 2), paths):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = [program, *arguments]
        if program == PREPARE:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(ROOT / program), run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        atexit._run_exitfuncs()  # multiprocessing tidies up then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
