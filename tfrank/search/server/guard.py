"""What every request passes: limits, checks of its origin, headers of its answer, counts and the log."""

import asyncio
import contextlib
import errno
import hmac
import logging
import time
import urllib.parse
from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import Depends, Header
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tfrank.search.server import schemas
from tfrank.search.server.bodies import Body, ClientLeft, too_large
from tfrank.search.server.errors import RequestError
from tfrank.search.server.metrics import Metrics
from tfrank.search.server.settings import Settings

VERSION = "index-version"
LONG = ("/v1/duplicates", "/v1/proposals", "/v1/doubts")
# What the log and the metrics say of a request whose client closed the connection, as nginx does.
LEFT = 499
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
        _take_raw_path(scope)

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                for name, value in {**_HEADERS, VERSION: str(self._version())}.items():
                    headers.setdefault(name, value)
            await send(message)

        with contextlib.closing(Body(receive, self._settings)) as body:
            try:
                await self._answer(scope, body, send_marked)
            except ClientLeft:
                status = LEFT
            # What was cancelled at the stop of the server ends here.
            except asyncio.CancelledError:
                if not status:
                    await RequestError(503, "The server stops.").response()(scope, receive, send_marked)
            # The log has the reason; the client learns that it is not to blame.
            except Exception as error:
                _LOG.exception("%s %s failed", scope["method"], scope["path"])
                if not status:
                    await _failure(error).response()(scope, receive, send_marked)
        endpoint = getattr(scope.get("route"), "path", "none")
        self._metrics.answered(endpoint, status, start)
        milliseconds = 1e3 * (time.monotonic() - start)
        _LOG.info("%s %s %d %.0f ms", scope["method"], scope["path"], status, milliseconds)

    async def _answer(self, scope, body, send):
        """Lets a request pass that may, once it has arrived, while there is room."""
        # Long work has a queue of its own.
        headers, place = Headers(scope=scope), int(works(scope) and scope["path"] not in LONG)
        try:
            self._check(scope, headers)
            await body.arrive()
            if place and self._working >= self._settings.max_waiting:
                raise RequestError(503, "The server is busy. Try again in a second.", 1)
        except RequestError as error:
            await body.drain()
            return await error.response()(scope, body, send)

        def leave():
            nonlocal place
            self._work(-place)
            place = 0

        async def send_and_leave(message: Message) -> None:
            # The work is done. A client who reads its answer slowly takes no place.
            leave()
            await send(message)

        self._work(place)
        try:
            await self._app(scope, body, send_and_leave)
        finally:
            leave()

    def _work(self, places):
        self._working += places
        self._metrics.waiting.set(self._working)

    def _check(self, scope, headers):
        """Raises RequestError for a request that nobody should send."""
        host = headers.get("host", "")
        if self._settings.hosts and _name(host) not in self._settings.hosts:
            raise RequestError(421, "The server does not go by this name. Its flag --hosts allows names.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > self._settings.max_bytes:
            raise too_large(self._settings)
        schemas.once(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
        senders = [headers[name] for name in ("origin", "referer") if name in headers]
        own = own and all(_server(sender) == host.lower() for sender in senders)
        if not own and (works(scope) or scope["method"] not in ("GET", "HEAD", "OPTIONS")):
            raise RequestError(403, "Pages of other servers may not send this request.")


def works(scope: Scope) -> bool:
    """Returns whether a request takes more than a look-up: it changes, embeds, searches or decodes."""
    path = scope["path"]
    return (
        scope["method"] in ("POST", "DELETE")
        or path in LONG
        or (path.startswith("/v1/items/") and path.endswith("/image"))
    )


def knows(authorization: str, secrets: Collection[str]) -> bool:
    """Returns whether a header Authorization names one of the secrets that are not empty."""
    given = authorization.removeprefix("Bearer ").encode(errors="replace")
    return any([hmac.compare_digest(given, one.encode()) for one in secrets if one])


def for_those_who_know(secrets: Collection[str], what: str) -> Any:
    """Returns the dependency of endpoints that refuse requests whose header Authorization names no secret.

    Args:
        secrets: those that are not empty; if none is, all requests are refused.
        what: what the endpoints change, in words.
    """

    def authorized(authorization: Annotated[str, Header()] = "") -> None:
        if not any(secrets):
            nobody = f"The server was started without a token, so that nobody may change {what}."
            raise RequestError(403, nobody)
        if not knows(authorization, secrets):
            raise RequestError(401, "Send the server's token: Authorization: Bearer TOKEN.")

    return Depends(authorized)


def _take_raw_path(scope):
    """Takes the path as it was sent, so that an encoded slash of an id is no slash of the address."""
    raw = scope.get("raw_path") or urllib.parse.quote(scope["path"]).encode()
    # Whatever else was sent, no character can break a line of the log.
    scope["path"] = urllib.parse.quote(raw, safe="%/:?#[]@!$&'()*+,;=~")


def _failure(error: Exception) -> RequestError:
    """Returns the answer to an error that no client is to blame for."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return RequestError(507, "The server's disk is full. Nothing was changed.")
    return RequestError(500, "The server failed. Its log says why.")


def _server(address):
    """Returns the server and port of an address; None if it has none.

    >>> _server("http://Search.example.org:80/page"), _server("null"), _server("http://[")
    ('search.example.org:80', None, None)
    """
    try:
        return urllib.parse.urlsplit(address).netloc.lower() or None
    except ValueError:
        return None


def _name(host: str) -> str:
    """Returns a host without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("Search.example.org")
    ('localhost', '[::1]', 'search.example.org')
    """
    name = host.lower()
    return name.split("]")[0] + "]" if name.startswith("[") else name.split(":")[0]
