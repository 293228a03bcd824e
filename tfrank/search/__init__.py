"""Search for images: an index folder, search in it from Python, and a server with a page.

It needs the extra `serve`: `pip install 'tfrank[serve]'`.

>>> from tfrank import search
>>> search.open("no_such_folder")
Traceback (most recent call last):
tfrank.common.checks.InputError: no_such_folder is not an index folder. Make one with tfrank index.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfrank.search.index import Found, SearchIndex
    from tfrank.search.index import open_index as open

__all__ = ["Found", "SearchIndex", "open"]


def __getattr__(name: str) -> Any:
    """Imports `open`, `SearchIndex` or `Found` when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'tfrank.search' has no attribute {name!r}")
    try:
        index = importlib.import_module("tfrank.search.index")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError("tfrank.search needs the extra `serve`: pip install 'tfrank[serve]'") from None
    return index.open_index if name == "open" else getattr(index, name)
