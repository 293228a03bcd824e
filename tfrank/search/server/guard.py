"""What every request passes: limits, checks of its origin, headers of its answer, counts and the log."""

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfrank.search.server.errors import RequestError
from tfrank.search.server.metrics import Metrics
from tfrank.search.server.settings import Settings

VERSION = "index-version"
_HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self' blob:; style-src 'self';"
    " script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_LOG = logging.getLogger("tfrank.search.server")


class Guard:
    """The outermost layer of the application.

    Args:
        app: what answers the requests that pass.
        settings: the limits.
        metrics: where requests are counted.
        version: returns the number of the version that is served.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, version: Callable[[], int]):
        self._app, self._settings, self._metrics, self._version = app, settings, metrics, version
        self._working = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.monotonic(), 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                for name, value in {**_HEADERS, VERSION: str(self._version())}.items():
                    headers.setdefault(name, value)
            await send(message)

        body = _Body(receive, self._settings)
        try:
            await self._answer(scope, body, send_marked)
        # The log has the reason; the client learns that it is not to blame.
        except Exception:
            _LOG.exception("%s %s failed", scope["method"], ascii(scope["path"]))
            if not status:
                error = RequestError(500, "The server failed. Its log says why.")
                await error.response()(scope, receive, send_marked)
        endpoint = getattr(scope.get("route"), "path", "none")
        self._metrics.answered(endpoint, status, start)
        milliseconds = 1e3 * (time.monotonic() - start)
        _LOG.info("%s %s %d %.0f ms", scope["method"], ascii(scope["path"])[1:-1], status, milliseconds)

    async def _answer(self, scope, body, send):
        """Lets a request pass that may, while there is room."""
        headers, works = Headers(scope=scope), _works(scope)
        try:
            self._check(scope, headers)
            if works and self._working >= self._settings.max_waiting:
                raise RequestError(503, "The server is busy. Try again in a second.", 1)
        except RequestError as error:
            await body.drain()
            return await error.response()(scope, body, send)
        self._working += works
        self._metrics.waiting.set(self._working)
        try:
            await self._app(scope, body, send)
        finally:
            self._working -= works
            self._metrics.waiting.set(self._working)

    def _check(self, scope, headers):
        """Raises RequestError for a request that nobody should send."""
        host = headers.get("host", "")
        if self._settings.hosts and _name(host) not in self._settings.hosts:
            raise RequestError(421, "The server does not go by this name. Its flag --hosts allows names.")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._settings.max_bytes:
            raise _too_large(self._settings)
        origin = headers.get("origin")
        own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
        if origin is not None:
            own = own and urllib.parse.urlsplit(origin).netloc.lower() == host.lower()
        if not own and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            raise RequestError(403, "Pages of other servers may not send this request.")


class _Body:
    """Receives the body of a request, up to the limits of size and time."""

    def __init__(self, receive: Receive, settings: Settings):
        self._receive, self._settings, self._bytes = receive, settings, 0
        self._until = time.monotonic() + settings.body_seconds
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0, self._until - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise RequestError(408, "The request took too long to arrive.") from None
        self._bytes += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._bytes > self._settings.max_bytes:
            await self.drain()
            raise _too_large(self._settings)
        return message

    async def drain(self) -> None:
        """Reads on, to twice the limit and for a second, since clients rarely read before they have sent."""
        until, most = time.monotonic() + 1, self._bytes + 2 * self._settings.max_bytes
        while not self._complete and self._bytes < most:
            try:
                async with asyncio.timeout(max(0, until - time.monotonic())):
                    message = await self._receive()
            except TimeoutError:
                return
            self._bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)


def _too_large(settings):
    return RequestError(413, f"A request has at most {settings.max_megabytes:g} megabytes. Send less.")


def _works(scope) -> bool:
    """Returns whether a request takes more than a look-up."""
    return scope["method"] in ("POST", "DELETE") or scope["path"] == "/v1/duplicates"


def _name(host: str) -> str:
    """Returns a host without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("Search.example.org")
    ('localhost', '[::1]', 'search.example.org')
    """
    name = host.lower()
    return name.split("]")[0] + "]" if name.startswith("[") else name.split(":")[0]
