"""The body of a request, which is received before anything is done for it: a slow client takes no place."""

import asyncio
import tempfile
import time

from starlette.types import Message, Receive

from tfrank.search.server.errors import RequestError
from tfrank.search.server.settings import Settings

# What is larger than this waits on the disk; and how much is read from there at a time.
IN_MEMORY, CHUNK = 2**16, 2**18
# How long one whose request is refused may go on sending, and how much, in multiples of the limit.
DRAIN_SECONDS, DRAIN_SHARE = 1, 2


class ClientLeft(Exception):
    """Raised where a client closes the connection before the end of its request."""


class Body:
    """The body of a request, up to the limits of size and time. Called, it gives what was received.

    Args:
        receive: receives a part.
        settings: the limits.
    """

    def __init__(self, receive: Receive, settings: Settings):
        self._receive, self._settings = receive, settings
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 (`close` closes it)
        self._bytes, self._complete, self._replayed = 0, False, False

    async def arrive(self) -> None:
        """Receives all of the body.

        Raises:
            RequestError: it is too large, or takes too long.
            ClientLeft: its client has gone.
        """
        until = time.monotonic() + self._settings.body_seconds
        while not self._complete:
            part = await self._next(until)
            if part is None:
                raise RequestError(408, "The request took too long to arrive.")
            if self._bytes > self._settings.max_bytes:
                raise too_large(self._settings)
            self._file.write(part)
        self._file.seek(0)

    async def drain(self) -> None:
        """Reads on for a while and forgets it, since clients rarely read before they have sent."""
        until = time.monotonic() + DRAIN_SECONDS
        most = self._bytes + DRAIN_SHARE * self._settings.max_bytes
        while not self._complete and self._bytes < most and await self._next(until) is not None:
            pass

    async def _next(self, until):
        """Returns the next part; None if none comes in time."""
        try:
            async with asyncio.timeout(max(0, until - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            return None
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        self._bytes += len(part)
        self._complete = not message.get("more_body", False)
        return part

    async def __call__(self) -> Message:
        """Returns the next message to the application."""
        if self._replayed:
            return await self._receive()
        part = self._file.read(CHUNK)
        self._replayed = self._file.tell() >= self._bytes
        return {"type": "http.request", "body": part, "more_body": not self._replayed}

    def close(self) -> None:
        """Forgets the body."""
        self._file.close()


def too_large(settings: Settings) -> RequestError:
    """Returns the error for a request above the limit."""
    return RequestError(413, f"A request has at most {settings.max_megabytes:g} megabytes. Send less.")
