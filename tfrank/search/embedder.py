"""The model of an index: a SavedModel that embeds image files."""

import os
import shutil
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.export.fingerprint import fingerprint
from tfrank.export.saved_model import loading

# Number of images that the model embeds at a time.
BATCH = 32


class Embedder:
    """Embeds image files by the signature `encoded` of a SavedModel, as `export_saved_model` writes it.

    Args:
        folder: folder of the SavedModel.
        trusted: whether the model may run any operation. If not, one that could read or write files, contact
            other machines or run Python is refused before it is loaded.

    Attributes:
        fingerprint: 16 hexadecimal digits that stand for what the SavedModel computes.
        dim: dimension of the embeddings.

    Raises:
        InputError: the folder has no such SavedModel, or the model is refused.
    """

    def __init__(self, folder: str, *, trusted: bool = False):
        with loading(folder, trusted=trusted) as path:
            self.folder, self.fingerprint = folder, fingerprint(folder)
            # The model is held, since the signature alone does not keep the variables alive.
            self._model = tf.saved_model.load(path)
            if "encoded" not in self._model.signatures:
                raise ValueError(
                    "it does not take image files; a head on the embeddings of another model does so once it"
                    " is joined with that model, tfrank export --model=RUN --after=SAVED_MODEL"
                )
            self._signature = self._model.signatures["encoded"]
            self.dim = int(self._signature.structured_outputs["embedding"].shape[-1])

    def embed(self, images: Sequence[bytes], batch: int = BATCH) -> np.ndarray:
        """Returns `[images, dim]` float32 embeddings of unit norm. Images of any number, as files' bytes.

        The model embeds at most `batch` of them at a time.
        """
        parts = [
            self._signature(bytes=tf.constant(list(images[start : start + batch])))["embedding"].numpy()
            for start in range(0, len(images), batch)
        ]
        return np.concatenate(parts) if parts else np.zeros([0, self.dim], np.float32)


def check_model(folder: str, expected: str) -> None:
    """Raises InputError if there is a folder, and it has no SavedModel of that fingerprint."""
    if not os.path.isdir(folder):
        return
    try:
        found = fingerprint(folder)
    except InputError:
        found = ""
    if found != expected:
        raise InputError(
            f"{folder} is damaged, or is another model than the one that made the embeddings. Put that one"
            " back, or make the index again with tfrank index, in another folder."
        )


def _fail(error: OSError) -> None:
    raise error


def copy_model(source: str, target: str) -> None:
    """Copies a SavedModel into a new folder, which appears when it is complete."""
    if not os.path.exists(target):
        files.make_folder(os.path.dirname(target))
        with files.atomic_folder(target) as temporary:
            # Contents alone: network drives refuse modes and times, and a read-only model is not to be one.
            for folder, _, names in os.walk(source, onerror=_fail, followlinks=True):
                inside = os.path.join(temporary, os.path.relpath(folder, source))
                os.makedirs(inside, exist_ok=True)
                for name in names:
                    shutil.copyfile(os.path.join(folder, name), os.path.join(inside, name))
