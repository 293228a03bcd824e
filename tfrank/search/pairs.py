"""Photos that two models have embedded, or embed now: what a map between their embeddings is learnt on."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.common.progress import Progress
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.export.saved_model import saved_model_of
from tfrank.search import earlier
from tfrank.search.building import blocks
from tfrank.search.embedder import BATCH, Embedder
from tfrank.search.images import listed_images
from tfrank.search.index_folder import MAPPED, IndexFolder

# Photos that a map is learnt on, if there are so many.
MOST = 2000


class Pairs(NamedTuple):
    """Embeddings of the same photos by two models.

    Attributes:
        old, new: `[photos, dim]` float32 of unit norm.
        labels: the label of each photo; "" for none.
        models: fingerprints of the two models.
        embedded: how many photos the old and the new model embedded for this.
        unread: number of photos that were to be read, and cannot be.
    """

    old: np.ndarray
    new: np.ndarray
    labels: list[str]
    models: tuple[str, str]
    embedded: tuple[int, int]
    unread: int


class _Photo(NamedTuple):
    """A photo: its label, the SHA-256 of its file if that is known, and what reads the file."""

    label: str
    digest: str
    read: Callable[[], bytes]


class _Side:
    """One of the two: a model, and if it is given by an index, the embeddings there, by digests of files.

    Embeddings that were mapped from another model's are none of this model.
    """

    def __init__(self, path: str, *, trusted: bool):
        self.path, self.index, self.known = path, None, dict[str, int]()
        if os.path.isfile(os.path.join(path, "CURRENT")):
            self.index = IndexFolder(path)
            self.version = self.index.existing()
            self._contents = self.index.read(self.version, embeddings=False)
            rows = self._contents.table.to_pylist()
            digests = ("" if row.get(MAPPED) else row.get("file_sha256") or "" for row in rows)
            self.known = {digest: row for row, digest in enumerate(digests) if digest}
        folder = self.index.path("models", self.version.model) if self.index else saved_model_of(path)
        self.model, self._embedded = Embedder(folder, trusted=trusted), dict[str, np.ndarray]()

    def photos(self) -> list[_Photo]:
        """Returns the photos of the index whose embeddings are known."""
        rows = set(self.known.values())
        listed = (
            image for row, image in enumerate(earlier.as_indexed(self.index, self.version)) if row in rows
        )
        digests = sorted(self.known, key=self.known.get)
        return [_Photo(image.label, digest, image.read) for image, digest in zip(listed, digests)]

    def embed(self, photos: dict[str, bytes]) -> None:
        """Embeds photos, by digest, whose embeddings are not known."""
        new = [digest for digest in photos if digest not in self.known]
        self._embedded |= zip(new, self.model.embed([photos[digest] for digest in new]))

    def rows(self, digests: Sequence[str]) -> np.ndarray:
        """Returns the embeddings of photos that are known or were embedded."""
        found = dict(self._embedded)
        known = sorted((self.known[one], one) for one in {*digests} & self.known.keys())
        if known:
            numbers, names = zip(*known)
            found |= zip(names, self.index.vectors(self._contents, np.array(numbers)))
        return np.stack([found[digest] for digest in digests])


def pairs_of(old: str, new: str, images: str = "", *, most: int = MOST, trusted: bool = False) -> Pairs:
    """Embeds photos by two models, as far as an index does not have their embeddings already.

    Args:
        old, new: each the folder of a run, of a SavedModel, or of an index, which has a model and embeddings.
        images: folder of images or of records, or table, see `images.listed_images`. "": the photos of the
            old index, or of the new one, or those that both have if both are indexes.
        most: at most so many photos, evenly spread.
        trusted: whether the models may run any operation.

    Raises:
        InputError: both are one model, there are no images, two indexes have none in common, or none can be
            read.
    """
    sides = [_Side(path, trusted=trusted) for path in (old, new)]
    models = tuple(side.model.fingerprint for side in sides)
    if models[0] == models[1]:
        raise InputError(f"{old} and {new} have the same model, so there is nothing to map.")
    candidates = _candidates(images, sides)
    chosen = [candidates[row] for row in spread(len(candidates), most)]
    labels, unread = dict[str, str](), 0
    progress = Progress("embedding image", len(chosen))
    for number, some in enumerate(blocks(chosen, BATCH)):
        found = [pair for photo in some for pair in _read(photo, sides)]
        unread += len(some) - len(found)
        read = dict(found)  # Of copies, one.
        for side in sides:
            side.embed({digest: encoded for digest, (_, encoded) in read.items()})
        labels |= {digest: label for digest, (label, _) in read.items()}
        progress.show(done := min(len(chosen), BATCH * (number + 1)), always=done == len(chosen))
    if not labels:
        raise InputError(
            f"None of {len(chosen):,} photos can be read as it was indexed. Learn the map on others: tfrank"
            " compat --images=FOLDER"
        )
    embedded = tuple(len(side._embedded) for side in sides)
    rows = [side.rows(list(labels)) for side in sides]
    return Pairs(*rows, list(labels.values()), models, embedded, unread)


def _candidates(images: str, sides: Sequence[_Side]) -> list[_Photo]:
    """Returns the photos to choose from."""
    if images:
        return [_Photo(one.label, "", one.read) for one in listed_images(images) if not one.is_folder]
    indexes = [side for side in sides if side.index]
    if not indexes:
        raise InputError("Give the images to learn on: --images=FOLDER or --images=FILE.csv")
    found = [one for one in indexes[0].photos() if all(one.digest in side.known for side in indexes)]
    if not found:
        paths = " and ".join(side.path for side in indexes)
        have = "have no photo in common" if indexes[1:] else "has no photo that its model embedded"
        raise InputError(f"{paths} {have}. Give photos to embed: --images=FOLDER")
    return found


def _read(photo: _Photo, sides: Sequence[_Side]) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yields the digest of a photo, its label and what is embedded; nothing if it cannot be read."""
    if photo.digest and all(photo.digest in side.known for side in sides):
        yield photo.digest, (photo.label, b"")
        return
    try:
        data = photo.read()
        encoded = checked_image(data, shorter_side=SHORTER_SIDE).encoded
    except (BadImage, OSError):
        return
    yield hashlib.sha256(data).hexdigest(), (photo.label, encoded)


def spread(count: int, most: int) -> np.ndarray:
    """Returns up to `most` of `count` rows, evenly spread.

    >>> spread(10, 4)
    array([0, 3, 6, 9])
    """
    return np.linspace(0, count - 1, min(most, count)).astype(int)
