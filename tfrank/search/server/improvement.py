"""The command `tfrank improve` as a process of its own, so that the server goes on answering."""

import os
import subprocess
import sys
import tempfile

from tfrank.search.server.errors import RequestError

# Of what the command printed, the last lines are shown.
_LAST = 20


class Improvement:
    """The command for an index folder: at most one at a time.

    Args:
        folder: the index folder.
        trusted: whether to go back to a model that may run any operation.
    """

    def __init__(self, folder: str, *, trusted: bool = False):
        self._index, self._trusted, self._files = folder, trusted, tempfile.TemporaryDirectory()
        self._process: subprocess.Popen | None = None

    def start(self, *, back: bool) -> None:
        """Starts the command. Raises RequestError if it is running."""
        if self.state == "running":
            raise RequestError(409, "The index is being improved already.")
        command = [
            sys.executable,
            "-m",
            "tfrank",
            "improve",
            f"--index_dir={self._index}",
            *["--back"] * back,
            *["--trust_model"] * self._trusted,
        ]
        # Systems remove what has lain in /tmp for days.
        os.makedirs(self._files.name, mode=0o700, exist_ok=True)
        with open(self._path("output"), "wb") as output, open(self._path("errors"), "wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    @property
    def state(self) -> str:
        """One of "none", "running", "done" and "failed"."""
        if self._process is None:
            return "none"
        status = self._process.poll()
        return "running" if status is None else "failed" if status else "done"

    def lines(self) -> list[str]:
        """Returns the last lines that the command printed; its error alone if it failed."""
        if self._process is None:
            return []
        if self.state != "failed":
            return self._printed("output")[-_LAST:]
        errors = [line for line in self._printed("errors") if line.startswith("Error: ")]
        return [line.removeprefix("Error: ") for line in errors[-1:]] or ["It was stopped. Start it again."]

    def close(self) -> None:
        """Ends the command if it is running; then the index is as it was."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self._files.cleanup()

    def _printed(self, name):
        with open(self._path(name), errors="replace") as file:
            return file.read().splitlines()

    def _path(self, name):
        return os.path.join(self._files.name, name)
