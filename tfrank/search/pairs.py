"""Photos that two models have embedded, or embed now: what a map between their embeddings is learnt on."""

import contextlib
import hashlib
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.common.progress import Progress
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.export.saved_model import saved_model_of
from tfrank.search import earlier, labels
from tfrank.search.building import blocks
from tfrank.search.current import read_current
from tfrank.search.embedder import BATCH, Embedder
from tfrank.search.images import listed_images
from tfrank.search.index_folder import MAPPED, Contents, IndexFolder

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
    """One of the two: a model, and if it is given by an index, the embeddings there.

    Embeddings that were mapped from another model's are none of this model.

    Attributes:
        path, index: as given, and the index if it is one.
        model: the model.
        known, embedded: by the digests of files, embeddings that the index has, and those that were computed.
    """

    def __init__(self, path: str, *, trusted: bool):
        self.path, self.index = path, None
        self.known, self.embedded = dict[str, np.ndarray](), dict[str, np.ndarray]()
        if _is_index(path):
            self.index = IndexFolder(path)
            self.version = self.index.existing()
        self.model = Embedder(saved_model_of(model_folder(path)), trusted=trusted)

    def photos(self) -> dict[str, _Photo]:
        """Returns the photos of the index that its model embedded, by digest, labelled as people said."""
        said = labels.read(self.path)

        def read(version):
            digests = _digests(self.index.read(version, embeddings=False))
            found = zip(digests, earlier.as_indexed(self.index, version))
            return {
                digest: _Photo(said.get(image.id, image.label), digest, image.read)
                for digest, image in found
                if digest
            }

        return read_current(self.index, read)[1]

    def take(self, digests: Collection[str]) -> None:
        """Reads the embeddings that the index has of photos, as servers may remove the photos meanwhile.

        Raises:
            InputError: the index is damaged, or has another model by now.
        """

        def read(version):
            contents = self.index.read(version, embeddings=False)
            row_of = {digest: row for row, digest in enumerate(_digests(contents)) if digest}
            names = sorted(row_of.keys() & digests, key=row_of.get)
            rows = np.array([row_of[name] for name in names])
            return dict(zip(names, self.index.vectors(contents, rows))) if names else {}

        version, self.known = read_current(self.index, read)
        if version.model != self.version.model:
            raise InputError(f"{self.path} has another model by now. Run the same command again.")

    def embed(self, photos: dict[str, bytes]) -> None:
        """Embeds photos, by digest, whose embeddings are not known."""
        new = [digest for digest in photos if digest not in self.known]
        self.embedded |= zip(new, self.model.embed([photos[digest] for digest in new]))

    def rows(self, digests: Sequence[str]) -> np.ndarray:
        """Returns the embeddings of photos that are known or were embedded."""
        found = self.known | self.embedded
        return np.stack([found[digest] for digest in digests])


def model_folder(path: str) -> str:
    """Returns the folder of the model of an index; of a run or of a SavedModel, that itself."""
    if not _is_index(path):
        return path
    index = IndexFolder(path)
    return index.path("models", index.existing().model)


def _is_index(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "CURRENT"))


def _digests(contents: Contents) -> list[str]:
    """Returns the SHA-256 of the file of each row that the model of the index embedded; "" for others."""
    rows = contents.table.to_pylist()
    return ["" if row.get(MAPPED) else row.get("file_sha256") or "" for row in rows]


def pairs_of(old: str, new: str, images: str = "", *, most: int = MOST, trusted: bool = False) -> Pairs:
    """Embeds photos by two models, as far as an index does not have their embeddings already.

    Args:
        old, new: each the folder of a run, of a SavedModel, or of an index, which has a model and embeddings.
        images: folder of images or of records, or table, see `images.listed_images`. "": the photos of the
            old index, or of the new one, or those that both have if both are indexes.
        most: at most so many photos, evenly spread.
        trusted: whether the models may run any operation.

    Raises:
        InputError: both are one model, there are no images, two indexes have none in common, none can be
            read, or an index gets another model meanwhile.
    """
    sides = [_Side(path, trusted=trusted) for path in (old, new)]
    models = tuple(side.model.fingerprint for side in sides)
    if models[0] == models[1]:
        raise InputError(f"{old} and {new} have the same model, so there is nothing to map.")
    candidates = _candidates(images, sides)
    chosen = [candidates[row] for row in spread(len(candidates), most)]
    if indexes := [side for side in sides if side.index]:
        chosen = [_with_digest(photo) for photo in chosen]
        for side in indexes:
            side.take({photo.digest for photo in chosen})
    label_of, unread = dict[str, str](), 0
    progress = Progress("embedding image", len(chosen))
    for number, some in enumerate(blocks(chosen, BATCH)):
        found = [pair for photo in some for pair in _read(photo, sides)]
        unread += len(some) - len(found)
        read = dict(found)  # Of copies, one.
        for side in sides:
            side.embed({digest: encoded for digest, (_, encoded) in read.items()})
        label_of |= {digest: label for digest, (label, _) in read.items()}
        progress.show(done := min(len(chosen), BATCH * (number + 1)), always=done == len(chosen))
    if not label_of:
        raise InputError(
            f"None of {len(chosen):,} photos can be read as it was indexed. Learn the map on others: tfrank"
            " compat --images=FOLDER"
        )
    embedded = tuple(len(side.embedded) for side in sides)
    rows = [side.rows(list(label_of)) for side in sides]
    return Pairs(*rows, list(label_of.values()), models, embedded, unread)


def _candidates(images: str, sides: Sequence[_Side]) -> list[_Photo]:
    """Returns the photos to choose from."""
    if images:
        return [_Photo(one.label, "", one.read) for one in listed_images(images) if not one.is_folder]
    indexes = [side for side in sides if side.index]
    if not indexes:
        raise InputError("Give the images to learn on: --images=FOLDER or --images=FILE.csv")
    first, *others = [side.photos() for side in indexes]
    found = [photo for digest, photo in first.items() if all(digest in other for other in others)]
    if not found:
        paths = " and ".join(side.path for side in indexes)
        if not indexes[1:]:
            raise InputError(
                f"{paths} has no photo that its model embedded. Embed them first: tfrank index upgrade"
                f" --index_dir={shlex.quote(paths)}"
            )
        raise InputError(f"{paths} have no photo in common. Give photos to embed: --images=FOLDER")
    return found


def _with_digest(photo: _Photo) -> _Photo:
    """Returns a photo with the SHA-256 of its file, if it can be read."""
    with contextlib.suppress(BadImage, OSError):
        return photo._replace(digest=photo.digest or hashlib.sha256(photo.read()).hexdigest())
    return photo


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
