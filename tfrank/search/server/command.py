"""Serves an index of images: a page to search by pictures, and HTTP endpoints.

    tfrank serve --index_dir=index
    tfrank serve --demo

`--demo` trains on letters for a minute if there is no index, and serves those. The server answers
on this machine only, unless --host says otherwise. Nobody may change the index, unless --token is set.
"""

import logging
import os
import signal
import socket
from collections.abc import Sequence

from absl import flags

from tfrank.common import checks, commands
from tfrank.common.checks import InputError
from tfrank.search.server.settings import Settings

_INDEX = flags.DEFINE_string("index_dir", None, "Folder of the index.")
_DEMO = flags.DEFINE_bool("demo", False, "Make an index of letters if there is none.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at. 0.0.0.0: that of every network.")
_PORT = flags.DEFINE_integer("port", 8000, "Port to listen at. 0: any that is free.", 0, 65_535)
_HOSTS = flags.DEFINE_list("hosts", [], "Further names that the server goes by, as behind a proxy.")
_TOKEN = flags.DEFINE_string(
    "token", "", "What callers send to add and delete images. Default: the environment's TFRANK_TOKEN."
)
_MEGABYTES = flags.DEFINE_float("max_megabytes", 20, "Largest request, in millions of bytes.", 0.001)
_MEGAPIXELS = flags.DEFINE_float("max_megapixels", 50, "Largest image, in millions of pixels.", 0.001)
_WAITING = flags.DEFINE_integer("max_waiting", 64, "Requests answered at a time; others get status 503.", 1)
_CONNECTIONS = flags.DEFINE_integer(
    "max_connections", 256, "Connections at a time; one more closes the one that has been idle longest.", 1
)
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
_LOG = flags.DEFINE_bool("log_requests", True, "Print a line for each request.")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
DEMO_FOLDER = "runs/demo"


def main(_: Sequence[str]) -> None:
    """Serves until it is told to stop; then answers what it took."""
    try:
        from tfrank.search.server import app, demo, protocol
    except ImportError as error:
        raise InputError(
            f"The server needs the extra `serve` ({error}). Install it: pip install 'tfrank[serve]'"
        ) from None
    if not _HOST.value.strip():
        raise InputError("--host is empty. Give the address to listen at, such as --host=127.0.0.1")
    folder = _INDEX.value or (DEMO_FOLDER if _DEMO.value else None)
    if not folder:
        raise InputError("Give the folder of the index: --index_dir=index. Or try --demo.")
    settings = _settings()
    if _DEMO.value:
        demo.make_index(folder)
    _start_log(_LOG.value)
    application = app.create_app(folder, settings)
    with _listening(_HOST.value, _PORT.value) as listener:
        server = protocol.server_of(application, settings)

        def stop(*_):
            server.should_exit = True

        # The server handles signals while it runs. One may come before, and it raises them again after.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        name = f"[{_HOST.value}]" if ":" in _HOST.value else _HOST.value
        print(f"Serving {folder} at http://{name}:{listener.getsockname()[1]} - stop with Ctrl-C", flush=True)
        server.run(sockets=[listener])


def _settings():
    """Returns the settings that the flags say."""
    loopback = _HOST.value in ("localhost", "127.0.0.1", "::1")
    hosts = (*LOOPBACK, *(name.lower() for name in _HOSTS.value)) if loopback or _HOSTS.value else ()
    limits = {flag.name: flag.value for flag in (_MEGABYTES, _MEGAPIXELS, _WAITING, _CONNECTIONS)}
    with checks.called({name: f"--{name}" for name in limits}):
        return Settings(
            token=_TOKEN.value or os.environ.get("TFRANK_TOKEN", ""),
            hosts=hosts,
            trusted=_TRUST.value,
            **limits,
        )


def _start_log(requests: bool) -> None:
    """Prints what the server logs: its requests if wanted, and errors; never what images show."""
    log, handler = logging.getLogger("tfrank.search.server"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO if requests else logging.WARNING)
    log.propagate = False


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens. Raises InputError if the address cannot be used."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
        return listener
    # ValueError and TypeError: the host is no valid name.
    except (OSError, ValueError, TypeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"Cannot listen at {host}, port {port} ({reason}). Choose another port with --port, or 0 for any"
            " that is free."
        ) from None


def command() -> None:
    """The command tfrank serve."""
    commands.run(main)


if __name__ == "__main__":
    command()
