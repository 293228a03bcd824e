"""An index to try the server with: letters, and a model that is trained for a minute."""

import os
import subprocess
import sys

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.configs import letters
from tfrank.data.sources.letters import read_letters
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index_folder import IndexFolder

_TRAIN = "from tfrank.run.entry_points import train; train()"


def make_index(folder: str) -> None:
    """Makes an index of letters that training never sees, in a folder that has no index yet.

    The run and the images go to the folders `run` and `images` inside it.

    Raises:
        InputError: training fails.
    """
    if IndexFolder(folder).current() is not None:
        return
    files.make_folder(folder)
    run, images = os.path.join(folder, "run"), os.path.join(folder, "images")
    print(f"Training a model of letters for about a minute, in {run}.", flush=True)
    # In a process of its own, whose memory is free again when it ends.
    flags = [f"--config={letters.__file__}", f"--workdir={run}"]
    done = subprocess.run([sys.executable, "-c", _TRAIN, *flags], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise InputError(f"The demo could not be trained. Remove {run} and try again.")
    for image in read_letters(train=(), test=letters.get_config().data.test):
        path = os.path.join(images, image.text, f"{os.path.basename(image.id)}.png")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(image.encoded)
    embedder = Embedder(os.path.join(run, "saved_model"))
    building.update(folder, embedder, listed_images(images), root=images)
