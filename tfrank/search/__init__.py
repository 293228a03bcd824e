"""Search for images: an index folder, search in it from Python, and a server with a page.

It needs the extra `serve`: `pip install 'tfrank[serve]'`.

>>> from tfrank import search
>>> search.open("no_such_folder")
Traceback (most recent call last):
tfrank.common.checks.InputError: no_such_folder is not an index folder. Make one with tfrank-index.
"""

try:
    import pyarrow  # noqa: F401
except ImportError:
    raise ImportError("tfrank.search needs the extra `serve`: pip install 'tfrank[serve]'") from None

from tfrank.search.index import Found, SearchIndex, open_index

open = open_index

__all__ = ["Found", "SearchIndex", "open"]
