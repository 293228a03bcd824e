"""Listens at an address and answers there until it is told to stop."""

import logging
import signal
import socket

from fastapi import FastAPI

from tfrank.common.checks import InputError
from tfrank.search.server import app, protocol
from tfrank.search.server.settings import Settings


def opened(folder: str, settings: Settings, *, log_requests: bool) -> FastAPI:
    """Returns the application that serves an index folder, and begins its log.

    Args:
        folder: the index folder.
        settings: limits, names and the token.
        log_requests: whether to print a line for each request.

    Raises:
        InputError: the folder is no index, is damaged, or its model is refused.
    """
    _start_log(log_requests)
    return app.create_app(folder, settings)


def serve(application: FastAPI, listener: socket.socket, name: str) -> None:
    """Answers at the socket that `listening` returns until SIGINT or SIGTERM; then answers what it took.

    Args:
        application: what `opened` returns.
        listener: the socket, which stays open.
        name: what is served, in the line that says where.
    """
    server = protocol.server_of(application, application.state.service.settings)

    def stop(*_):
        server.should_exit = True

    # The server handles signals while it runs. One may come before, and it raises them again after.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    key = application.state.service.settings.key
    # What stands after # stays in the browser.
    where = address(listener) + (f"/#key={key}" if key else "")
    print(f"Serving {name} at {where} - stop with Ctrl-C", flush=True)
    server.run(sockets=[listener])


def address(listener: socket.socket) -> str:
    """Returns what a browser on this machine opens."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening(host: str, *ports: int) -> socket.socket:
    """Returns a socket that listens at the first port that is free. Raises InputError if none is."""
    if not host.strip():
        raise InputError("--host is empty. Give the address to listen at, such as --host=127.0.0.1")
    for port in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
            return listener
        # ValueError and TypeError: the host is no valid name.
        except (OSError, ValueError, TypeError) as error:
            listener.close()
            message = f"Cannot listen at {host}, port {port} ({getattr(error, 'strerror', None) or error})."
    raise InputError(f"{message} Choose another port with --port, or 0 for any that is free.")


def _start_log(requests: bool) -> None:
    """Prints what the server logs: its requests if wanted, and errors; never what images show."""
    log, handler = logging.getLogger("tfrank.search.server"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if requests else logging.WARNING)
    log.propagate = False
