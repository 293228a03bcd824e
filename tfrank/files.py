"""Files that are written whole or not at all."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO

from tfrank.checks import InputError


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "wb") -> Iterator[IO]:
    """A file to write to that takes its name only when the block ends without an error."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def write_json(path: str, tree: Mapping) -> None:
    """Writes a tree of plain values as readable JSON, whole or not at all."""
    with atomic_write(path, "w") as file:
        json.dump(tree, file, indent=2)
        file.write("\n")


def make_folder(path: str) -> str:
    """Makes the folder, and its parents, if need be; InputError where it cannot be written to."""
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"Cannot write to {path} ({error.strerror}). Choose another folder.") from None
    return path
