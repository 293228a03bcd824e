"""Listens at an address and answers there until it is told to stop."""

import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

from tfrank.common.checks import InputError
from tfrank.search.server import app, protocol
from tfrank.search.server.settings import Settings


def serve(folder: str, settings: Settings, listener: socket.socket, *, log_requests: bool) -> None:
    """Serves an index folder until SIGINT or SIGTERM; then answers what it took.

    Args:
        folder: the index folder.
        settings: limits, names and the token.
        listener: the socket that `listening` returns.
        log_requests: whether to print a line for each request.

    Raises:
        InputError: the folder is no index, is damaged, or its model is refused.
    """
    _start_log(log_requests)
    server = protocol.server_of(app.create_app(folder, settings), settings)

    def stop(*_):
        server.should_exit = True

    # The server handles signals while it runs. One may come before, and it raises them again after.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    print(f"Serving {folder} at {address(listener)} - stop with Ctrl-C", flush=True)
    server.run(sockets=[listener])


def address(listener: socket.socket) -> str:
    """Returns what a browser on this machine opens."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def listening(host: str, *ports: int) -> Iterator[socket.socket]:
    """Gives a socket that listens at the first port that is free, and closes it.

    Raises:
        InputError: the address cannot be used.
    """
    if not host.strip():
        raise InputError("--host is empty. Give the address to listen at, such as --host=127.0.0.1")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in ports:
            try:
                listener.bind((host, port))
                listener.listen(128)
                break
            # ValueError and TypeError: the host is no valid name.
            except (OSError, ValueError, TypeError) as error:
                reason = getattr(error, "strerror", None) or error
                message = f"Cannot listen at {host}, port {port} ({reason})."
        else:
            raise InputError(f"{message} Choose another port with --port, or 0 for any that is free.")
        yield listener


def _start_log(requests: bool) -> None:
    """Prints what the server logs: its requests if wanted, and errors; never what images show."""
    log, handler = logging.getLogger("tfrank.search.server"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if requests else logging.WARNING)
    log.propagate = False
