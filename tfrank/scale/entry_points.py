"""The command tfrank scale, which says what to install if the extra `beam` is missing."""

import importlib
import logging
import sys


def scale() -> None:
    """Runs tfrank scale with the command line of this process."""
    # Beam warns of each store that it has no client for.
    logging.getLogger().setLevel(logging.ERROR)
    try:
        program = importlib.import_module("tfrank.scale.command")
    except ImportError as error:
        print(f"Error: {error}. Install the extra: pip install 'tfrank[beam]'", file=sys.stderr)
        sys.exit(1)
    program.command()


if __name__ == "__main__":
    scale()
