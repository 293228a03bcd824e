"""Serves an index of images: a page to search by pictures, and HTTP endpoints.

    tfrank serve --index_dir=index
    tfrank serve --demo

`--demo` trains on letters for a minute if there is no index, and serves those. The server answers
on this machine only, unless --host says otherwise. Nobody may change the index, unless --token is set.
"""

import os
from collections.abc import Sequence

from absl import flags

from tfrank.common import checks, commands
from tfrank.common.checks import InputError
from tfrank.export.saved_model import saved_model_of
from tfrank.search.server.settings import Settings, key_for, names_of

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
_QUERY_MODEL = flags.DEFINE_string(
    "query_model",
    "",
    "Run or SavedModel that embeds the images to search by, such as a network that the model of the index"
    " has taught. Default: the model of the index.",
)
_LOG = flags.DEFINE_bool("log_requests", True, "Print a line for each request.")

DEMO_FOLDER = "runs/demo"


def main(_: Sequence[str]) -> None:
    """Serves until it is told to stop; then answers what it took."""
    try:
        from tfrank.search.server import demo, serving
    except ImportError as error:
        raise InputError(
            f"The server needs the extra `serve` ({error}). Install it: pip install 'tfrank[serve]'"
        ) from None
    folder = _INDEX.value or (DEMO_FOLDER if _DEMO.value else None)
    if not folder:
        raise InputError("Give the folder of the index: --index_dir=index. Or try --demo.")
    settings = _settings()
    if _DEMO.value:
        demo.make_index(folder)
    application = serving.opened(folder, settings, log_requests=_LOG.value)
    with serving.listening(_HOST.value, _PORT.value) as listener:
        serving.serve(application, listener, folder)


def _settings():
    """Returns the settings that the flags say."""
    limits = {flag.name: flag.value for flag in (_MEGABYTES, _MEGAPIXELS, _WAITING, _CONNECTIONS)}
    with checks.called({name: f"--{name}" for name in limits}):
        token = _TOKEN.value or os.environ.get("TFRANK_TOKEN", "")
        return Settings(
            token=token,
            key=key_for(_HOST.value, token),
            hosts=names_of(_HOST.value, _HOSTS.value),
            trusted=_TRUST.value,
            query_model=_QUERY_MODEL.value and saved_model_of(_QUERY_MODEL.value),
            **limits,
        )


def command() -> None:
    """The command tfrank serve."""
    commands.run(main)


if __name__ == "__main__":
    command()
