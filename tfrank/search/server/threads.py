"""The threads that work for a server: each kind of work has its own, so that no other waits behind it."""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tfrank.search.server.errors import RequestError

# Files are read by so many at a time, also where the disk is slow to answer.
READERS = 8
# Number of long works that are under way or wait.
MOST_LONG = 4


class Stopped(Exception):
    """Raised in long work when the server stops."""


class Threads(contextlib.ExitStack):
    """Pools of threads. They end with the context, once what they took is done; long work ends early.

    Attributes:
        answers: compute small things.
        images: decode images.
        files: read files.
        looks: look for new versions of the index.
    """

    def __init__(self):
        super().__init__()
        many = os.cpu_count()
        self.answers, self.images, self.files, self.looks, self._long = (
            self.enter_context(ThreadPoolExecutor(size)) for size in (many, many, READERS, 1, 1)
        )
        self._waiting, self._stopping = 0, threading.Event()
        self.callback(self.stop_long_work)

    async def run(self, pool: ThreadPoolExecutor, function: Callable, *arguments: Any) -> Any:
        """Returns `function(*arguments)`, computed by a thread of a pool."""
        return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(function, *arguments))

    async def run_long(self, function: Callable, *arguments: Any) -> Any:
        """Returns `function(*arguments, check)`, long work, which calls `check` often: it raises at the stop.

        Raises:
            RequestError: too much long work waits, or the server stops.
        """
        if self._waiting >= MOST_LONG:
            raise RequestError(503, "Other long work waits already. Try again in a minute.", 60)
        self._waiting += 1
        try:
            return await self.run(self._long, function, *arguments, self._check)
        except Stopped:
            raise RequestError(503, "The server stops.") from None
        finally:
            self._waiting -= 1

    def _check(self):
        if self._stopping.is_set():
            raise Stopped

    def stop_long_work(self) -> None:
        """Ends the long work that is under way or waits."""
        self._stopping.set()
