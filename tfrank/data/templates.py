"""Templates beside records: sets of images of one person, and the pairs of templates to compare.

`templates.npz` has the ids, templates and media of the images. `template_pairs.npy` has the pairs; it is
memory-mapped, because IJB-C has 15.7 million.
"""

import io
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError

TEMPLATES, PAIRS = "templates.npz", "template_pairs.npy"


class Templates(NamedTuple):
    """Templates of a data set, each a set of images of one person, and pairs of templates.

    Attributes:
        ids: `[images]` bytes, the ids of the images.
        template: `[images]` int32, the template that an image belongs to.
        media: `[images]` int32, the photo or video that it is from.
        pairs: `[pairs, 3]` int32: two templates, and 1 if they show the same person, else 0.
    """

    ids: np.ndarray
    template: np.ndarray
    media: np.ndarray
    pairs: np.ndarray

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Returns `[images, 2]` int32, template and media of each of these ids; InputError for an unknown id.

        >>> templates = Templates(np.array([b"2.jpg", b"1.jpg"]), np.array([7, 8]), np.array([3, 4]), None)
        >>> templates.of(np.array([b"1.jpg"])).tolist()
        [[8, 4]]
        """
        order = np.argsort(self.ids, kind="stable")
        place = np.searchsorted(self.ids, ids, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)]
        unknown = np.flatnonzero(self.ids[rows] != ids)
        if len(unknown):
            image = ids[unknown[0]].decode(errors="backslashreplace")
            raise InputError(
                f"The image {image!r} has no template in {TEMPLATES}: that file belongs to other records."
                " Prepare the records again."
            )
        return np.stack([self.template[rows], self.media[rows]], axis=1)

    def check_complete(self, ids: np.ndarray, folder: str) -> None:
        """Raises InputError if a template of a pair has no image among the ids of the folder's records."""
        missing = np.setdiff1d(self.pairs[:, :2], self.of(ids)[:, 0])
        if len(missing):
            images = int((self.template == missing[0]).sum())
            raise InputError(
                f"No image of template {missing[0]} can be used, so its pairs cannot be compared"
                f" ({len(missing):,} such template{'s' * (len(missing) > 1)}, this one of {images:,} images)."
                f" {os.path.join(folder, 'skipped.csv')} says what is wrong with them. Put good ones in their"
                " place and give the same command again."
            )

    def counts(self) -> dict[str, int]:
        """Counts templates, pairs, and pairs of the same person."""
        positive = int(np.count_nonzero(self.pairs[:, 2]))
        return {
            "templates": len(np.unique(self.template)),
            "pairs": len(self.pairs),
            "positive_pairs": positive,
        }


def save_templates(folder: str, templates: Templates, ids: np.ndarray | None = None) -> Templates:
    """Writes both files, each whole or not at all, and returns the templates as `load_templates` does.

    Args:
        folder: where the files go.
        templates: what to write.
        ids: `[images]` bytes, the ids of the images that have records; None skips the check.

    Raises:
        InputError: no image of a pair's template is among `ids`.
    """
    if ids is not None:
        templates.check_complete(ids, folder)
    with files.atomic_write(os.path.join(folder, PAIRS)) as file:
        np.save(file, templates.pairs)
    with files.atomic_write(os.path.join(folder, TEMPLATES)) as file:
        np.savez(file, ids=templates.ids, template=templates.template, media=templates.media)
    return load_templates(folder)


def load_templates(folder: str) -> Templates | None:
    """Loads the templates of prepared records, local or remote; None if they have none.

    Raises:
        InputError: a file is damaged, or the pairs are missing.
    """
    path = os.path.join(folder, TEMPLATES)
    files.check_reachable(path)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with np.load(_opened(path), allow_pickle=False) as arrays:
            columns = [arrays[name] for name in ("ids", "template", "media")]
        path = os.path.join(folder, PAIRS)
        templates = Templates(*columns, np.load(_opened(path), None if files.is_remote(path) else "r"))
        if len({column.shape for column in columns}) > 1 or columns[0].dtype.kind != "S":
            raise ValueError(f"shapes {[column.shape for column in columns]}")
        if templates.pairs.ndim != 2 or templates.pairs.shape[1] != 3 or templates.pairs.dtype != np.int32:
            raise ValueError(f"pairs are {templates.pairs.dtype} {templates.pairs.shape}")
    except (*files.NPZ_ERRORS, tf.errors.OpError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete the folder and prepare it again.") from None
    return templates


def _opened(path):
    """Returns what NumPy can read: the path of a local file, or the bytes of a remote one."""
    if not files.is_remote(path):
        return path
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())
