"""Opens a page that searches a folder of photos by what is in them, without labels or training.

    tfrank photos FOLDER

EfficientNet-Lite0 with ImageNet weights, which came with tfrank, embeds the photos. The page opens as soon as
the first thousand, drawn evenly, can be searched; the others follow while it is open. At last the model is
adapted to them: what differs between neighbours counts for less. Started again, the page opens at once, and
only photos that are new or changed are embedded. The photos are read and never written: the index goes to
`runs/photos`, or where --index_dir says.
"""

import functools
import multiprocessing
import sys
import threading
import time
from collections.abc import Sequence

from absl import flags

from tfrank.common import commands
from tfrank.common.checks import InputError
from tfrank.data.prepare.image_files import MAX_PIXELS
from tfrank.search.index_folder import IndexFolder
from tfrank.search.server import serving
from tfrank.search.server.settings import Settings, key_for, names_of
from tfrank.search.signalled import end_with_parent, ended_by, say_if_killed
from tfrank.search.updating import index_for, update_from

_INDEX = flags.DEFINE_string(
    "index_dir", "", "Folder of the index. Default: a folder in runs/photos, named by the folder of photos."
)
_MODEL = flags.DEFINE_string(
    "model",
    "",
    "Folder of a run or of a SavedModel. Default: the model of the index, or at first EfficientNet-Lite0.",
)
_ADAPT = flags.DEFINE_bool(
    "adapt", True, "Adapt a given model to the photos, without labels. EfficientNet-Lite0 always is."
)
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at. 0.0.0.0: that of every network.")
_PORT = flags.DEFINE_integer(
    "port",
    -1,
    "Port to listen at. 0: any that is free. Default: 8000, or if taken any other.",
    -1,
    65_535,
)

# So many photos can be searched before the others are embedded; about half a minute on two cores.
FIRST = 1000
USUAL_PORT = 8000
# Megabytes of the largest file that is dropped on the page: no JPEG of so many pixels has more.
LARGEST = 100


def main(argv: Sequence[str]) -> None:
    """Embeds in one process and serves in another, until the server is told to stop."""
    if len(argv) != 2:
        raise InputError("Give the folder of photos: tfrank photos FOLDER")
    photos = argv[1]
    folder = _INDEX.value or index_for(photos)
    ports = (_PORT.value,) if _PORT.value >= 0 else (USUAL_PORT, 0)
    with serving.listening(_HOST.value, *ports) as listener:
        # A model that the index has is left as it is: somebody may have gone back to it.
        adapted = _ADAPT.value and bool(_MODEL.value)
        # A process of its own, so that searches do not wait for photos.
        embedding = multiprocessing.get_context("spawn").Process(
            target=_embed, args=(folder, photos, _MODEL.value, _TRUST.value, adapted), daemon=True
        )
        embedding.start()
        index = IndexFolder(folder)
        while index.current() is None:
            if status := embedding.exitcode:
                if why := ended_by(status):
                    raise InputError(why)
                # It has said why.
                sys.exit(1)
            time.sleep(0.1)
        ended = threading.Event()
        threading.Thread(target=say_if_killed, args=(embedding, ended), daemon=True).start()
        # Whoever has such photos in the folder searches by them too.
        settings = Settings(
            key=key_for(_HOST.value),
            hosts=names_of(_HOST.value),
            trusted=_TRUST.value,
            max_megabytes=LARGEST,
            max_megapixels=MAX_PIXELS / 1e6,
        )
        application = serving.opened(folder, settings, log_requests=False)
        try:
            serving.serve(application, listener, folder)
        finally:
            ended.set()


def _embed(folder: str, photos: str, model: str, trusted: bool, adapted: bool) -> None:
    """Brings the index up to date, as a command of its own that says what is wrong and ends with the page."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    commands.run(
        lambda _: update_from(folder, photos, model=model, trusted=trusted, first=FIRST, adapted=adapted),
        parse=lambda argv: commands.parse_flags(argv[:1]),
    )


def command() -> None:
    """The command tfrank photos."""
    commands.run(main, parse=functools.partial(commands.parse_with_help, main.__module__, words=True))


if __name__ == "__main__":
    command()
