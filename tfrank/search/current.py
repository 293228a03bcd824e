"""Reads the current version of an index while servers make newer ones."""

from collections.abc import Callable
from typing import TypeVar

from tfrank.common.checks import InputError
from tfrank.search.index_folder import IndexFolder, Version

T = TypeVar("T")


def read_current(index: IndexFolder, read: Callable[[Version], T]) -> tuple[Version, T]:
    """Returns the current version of an index, and what is read of it.

    Two newer versions may remove a file meanwhile. Then it is read again, of the newest.

    Args:
        index: the index.
        read: reads what is wanted of a version.

    Raises:
        InputError: there is no index, or it is damaged.
    """
    while True:
        version = index.existing()
        try:
            return version, read(version)
        except (InputError, FileNotFoundError):
            if index.existing() == version:
                raise
