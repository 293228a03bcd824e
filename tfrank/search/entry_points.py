"""The commands tfrank-index and tfrank-serve, which say what to install if the extra `serve` is missing."""

import importlib
import sys


def index() -> None:
    """Runs tfrank-index with the command line of this process."""
    _run("tfrank.search.command")


def serve() -> None:
    """Runs tfrank-serve with the command line of this process."""
    _run("tfrank.search.server.command")


def _run(name: str) -> None:
    try:
        program = importlib.import_module(name)
    except ImportError as error:
        print(f"Error: {error}. Install the extra: pip install 'tfrank[serve]'", file=sys.stderr)
        sys.exit(1)
    program.command()
