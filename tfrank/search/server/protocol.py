"""HTTP connections that cost a server little: few, with small headers, closed when their client is too slow.

uvicorn limits the bytes of a header and the seconds that a connection may idle. It limits neither the time
for a header, nor for reading an answer, and refuses everybody when there are too many connections.
"""

import asyncio
import functools
import http
import json
import logging
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfrank.search.server.settings import Settings

# Seconds between two looks at a connection, and those that the pace of a reader is measured over.
LOOK_SECONDS, PACE_SECONDS = 1, 10
# A reader who takes fewer bytes a second is not waited for.
SLOWEST = 1000
# How long a server that is told to stop waits for the requests that it took, and for the rest of a body.
STOP_SECONDS, ARRIVE_SECONDS = 30, 5
_LOG = logging.getLogger("tfrank.search.server")


class Server(uvicorn.Server):
    """A server that does something first when it is told to stop.

    Args:
        config: of uvicorn.
        stop: what it does.
    """

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]):
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers what was taken, and ends."""
        self._stop()
        await super().shutdown(sockets)


def server_of(application: FastAPI, settings: Settings) -> Server:
    """Returns a server of an application of `create_app`, with the limits of its settings."""
    config = uvicorn.Config(
        application,
        http=functools.partial(Connection, settings=settings),
        ws="none",
        h11_max_incomplete_event_size=settings.max_header_bytes,
        # Clients who send no HTTP are logged with the requests.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return Server(config, application.state.service.threads.stop_long_work)


class Connection(H11Protocol):
    """A connection from a client.

    Args:
        settings: the limits.
        arguments: those of uvicorn.
    """

    def __init__(self, *, settings: Settings, **arguments: Any):
        super().__init__(**arguments)
        self._settings, self._begun, self._header_bytes = settings, self.loop.time(), 0
        self._looks = 0
        self._pace = (self._begun, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Takes a connection. Of too many, the one is closed that has waited for its client longest."""
        super().connection_made(transport)
        self._look()
        others = [other for other in self.connections if not other.transport.is_closing()]
        if len(others) > self._settings.max_connections:
            waiting = [other for other in others if other is not self and other.waits]
            if waiting:
                min(waiting, key=lambda other: other._begun).transport.abort()
            else:
                self._refuse(503, "The server has too many connections. Try again in a second.")

    @property
    def waits(self) -> bool:
        """Whether the client is to act: to send a request or the rest of one, or to read an answer."""
        return self._idle() or self.cycle.more_body or self.flow.write_paused

    def _idle(self):
        return self.cycle is None or self.cycle.response_complete

    def _look(self):
        """Closes the connection if its client is too slow; else looks again after a while."""
        if self not in self.connections:
            return
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        since, before = self._pace
        if not unread or not before:
            self._pace = now, unread
        elif now - since >= PACE_SECONDS:
            if unread > before - SLOWEST * (now - since):
                return self.transport.abort()
            self._pace = now, unread
        # Looks are counted, not seconds: between two of them a server that was busy reads what has come.
        late = self._idle() and self._looks * LOOK_SECONDS > self._settings.header_seconds
        if late and not unread and not self.transport.is_closing():
            self._refuse(408, "The request took too long to arrive.")
        self._looks += 1
        self.loop.call_later(LOOK_SECONDS, self._look)

    def data_received(self, data: bytes) -> None:
        """Takes what the client sent."""
        self._header_bytes = self._header_bytes + len(data) if self._idle() else 0
        super().data_received(data)
        if not self._idle():
            self._header_bytes = 0

    def on_response_complete(self) -> None:
        """Waits for the next request."""
        self._begun, self._looks = self.loop.time(), 0
        super().on_response_complete()

    def shutdown(self) -> None:
        """Ends the connection once its request is answered. One that has not arrived gets a few seconds."""
        super().shutdown()
        self.loop.call_later(ARRIVE_SECONDS, self._give_up)

    def _give_up(self):
        if not self._idle() and self.cycle.more_body:
            self._refuse(503, "The server stops.")

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, and closes the connection."""
        if self._header_bytes >= self._settings.max_header_bytes:
            self._refuse(431, f"A header has at most {self._settings.max_header_bytes:,} bytes. Send less.")
        else:
            self._refuse(400, "This is no HTTP request.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers with an error and closes the connection."""
        if self._idle() or not self.cycle.response_started:
            body = json.dumps({"error": message}).encode()
            head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
            _LOG.info("no request %d", status)
        if not self._idle():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
