"""Lists all images of a data set on disk before any is read, to keep the use of memory low."""

import array
import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import posixpath
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import check_name
from tfrank.data.sources.image import Count, SourceImage

# Two to train on and two to test on, so that there are negatives.
MIN_CLASSES = 4
_IMAGES_BETWEEN_LINES = 500_000


@dataclasses.dataclass
class Listing:
    """The images of a split; each is a line of a file.

    Attributes:
        path: path of that file.
        starts: `[images]` int64, first byte of each line.
        ids: `[images]` int64, hashes of the ids, equal for equivalent ids; see `_same`.
        repeated: numbers of the images whose id an earlier image has.
        labels: {label: name} of the classes, by role.
        images: number of images, by role.
        missing: number of images without a file.
        unusable: number of images without a file or with a repeated id.
        first_missing: path of the first image without a file, as the source gives it.
    """

    path: str
    starts: np.ndarray
    ids: np.ndarray
    repeated: np.ndarray
    labels: dict[str, dict[int, str]]
    images: dict[str, int]
    missing: int = 0
    unusable: int = 0
    first_missing: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    def counts(self, split: str) -> dict[str, Count]:
        """Returns the counts by split and role, with the keys of `sources.image.Source.counts`."""
        return {
            f"{split} {role}".strip(): Count(len(labels.keys() - {UNKNOWN}) or None, self.images[role])
            for role, labels in self.labels.items()
        }


def list_images(images: Iterable[SourceImage], folder: str, *, root: str | None = None) -> dict[str, Listing]:
    """Writes a list for each split to `<folder>/<split>.images`.

    Args:
        images: images of all splits.
        folder: where the lists go.
        root: the folder that the images' paths are relative to. None, or a remote one, skips the check that
            files exist.

    Raises:
        InputError: there are no images, or an id or class name is too long.
    """
    writers = {}
    with files.naming(folder), contextlib.ExitStack() as stack:
        for number, image in enumerate(images):
            if image.split not in writers:
                path = os.path.join(folder, f"{image.split}.images")
                writers[image.split] = _Writer(path, stack.enter_context(open(path, "wb")), root)
            writers[image.split].add(image)
            if number and number % _IMAGES_BETWEEN_LINES == 0:
                print(f"{number:,} images listed so far", flush=True)
    if not writers:
        raise InputError(f"The source has no images{f' in {root}' if root else ''}. Give another one.")
    return {split: writer.listing() for split, writer in writers.items()}


class _Writer:
    """Writes one list; of each image it keeps only the start of its line and a hash of its id in memory."""

    def __init__(self, path, file, root):
        self._path, self._file = path, file
        self._root = None if root is None or files.is_remote(root) else root
        self._missing, self._first_missing = array.array("q"), ""
        self._starts, self._ids, self._end = array.array("q"), array.array("q"), 0
        self._labels, self._images = {}, {}

    def add(self, image):
        check_name("id", os.fsencode(image.id), where := f"the image {image.path[:100]}")
        check_name("class", image.text.encode(errors="surrogateescape"), where)
        line = json.dumps(vars(image), default=_as_text).encode() + b"\n"
        self._file.write(line)
        self._starts.append(self._end)
        self._end += len(line)
        digest = hashlib.blake2b(os.fsencode(_same(image.id)), digest_size=8).digest()
        self._ids.append(int.from_bytes(digest, "little", signed=True))
        self._labels.setdefault(image.role, {})[image.label] = image.text
        self._images[image.role] = self._images.get(image.role, 0) + 1
        looked_for = self._root is not None and image.encoded is None and not files.is_remote(image.path)
        if looked_for and not os.path.exists(os.path.join(self._root, image.path)):
            self._first_missing = self._first_missing or image.path
            self._missing.append(len(self._starts) - 1)

    def listing(self):
        ids = np.frombuffer(self._ids, np.int64)
        order = np.argsort(ids, kind="stable")
        repeated = np.sort(order[1:][ids[order[1:]] == ids[order[:-1]]])
        starts = np.frombuffer(self._starts, np.int64)
        unusable = len(np.union1d(repeated, self._missing))
        found = len(self._missing), unusable, self._first_missing
        return Listing(self._path, starts, ids, repeated, self._labels, self._images, *found)


def _same(image_id):
    """Normalises an id: ./a.jpg becomes a.jpg, and é as two characters becomes one."""
    return unicodedata.normalize("NFC", posixpath.normpath(image_id))


def _as_text(encoded: bytes) -> str:
    return base64.b64encode(encoded).decode()


def lines_at(path: str, starts: Iterable[int]) -> Iterator[bytes]:
    """Yields the lines of a list that begin at these bytes."""
    with open(path, "rb") as file:
        for start in starts:
            file.seek(start)
            yield file.readline()


def read_images(path: str, starts: Iterable[int]) -> Iterator[SourceImage]:
    """Yields the images of the lines of a list that begin at these bytes."""
    return map(image_of, lines_at(path, starts))


def image_of(line: bytes) -> SourceImage:
    """Returns the image of a line of a list."""
    fields = json.loads(line)
    if fields["encoded"] is not None:
        fields["encoded"] = base64.b64decode(fields["encoded"])
    return SourceImage(**fields)


def check_enough(listings: dict[str, Listing], where: str) -> None:
    """Raises InputError if there are fewer than four classes, or a split has one image of each class.

    Does nothing without a split "train". `where` names the images in the message.
    """
    if "train" not in listings:
        return
    classes = {split: len(_classes(listing).keys() - {UNKNOWN}) for split, listing in listings.items()}
    total = len(set().union(*map(_classes, listings.values())) - {UNKNOWN})
    if total < MIN_CLASSES:
        images = sum(map(len, listings.values()))
        raise InputError(
            f"{where} has {total} class{'es' * (total != 1)} of {images:,} image{'s' * (images != 1)}. At"
            f" least {MIN_CLASSES} classes are needed, two to train on and two to test on. Add classes."
        )
    for split, listing in listings.items():
        if len(listing) <= classes[split]:
            raise InputError(
                f"All classes of {split} in {where} have only one image ({classes[split]:,} classes)."
                " Training and testing need classes of two or more images. Add images."
            )


def check_disjoint(listings: dict[str, Listing]) -> None:
    """Raises InputError if a class of "train" is also in a split whose name begins with "test"."""
    if "train" not in listings:
        return
    train = _classes(listings["train"])
    for split, listing in listings.items():
        common = train.keys() & _classes(listing).keys() - {UNKNOWN} if split.startswith("test") else set()
        if common:
            some = ", ".join(repr(train[label]) for label in sorted(common)[:5]) + ", ..." * (len(common) > 5)
            raise InputError(
                f"Classes in both train and {split}: {len(common):,} ({some}). A retrieval model is tested on"
                " classes that it was not trained on. To allow common classes, give"
                " `tfrank prepare` --allow_common_classes."
            )


def check_images_apart(listings: dict[str, Listing]) -> None:
    """Raises InputError if an image of "train" is also in a split whose name begins with "test"."""
    train = listings.get("train")
    for split, listing in listings.items():
        if train is None or not split.startswith("test"):
            continue
        common, *places = np.intersect1d(train.ids, listing.ids, return_indices=True)
        if len(common):
            first = places[0].argmin()
            one, other = (
                next(read_images(of.path, of.starts[place[first : first + 1]])).id
                for of, place in zip((train, listing), places)
            )
            name = repr(one) if one == other else f"{one!r}, in {split} {other!r}"
            raise InputError(
                f"Images in both train and {split}: {len(common):,}, such as {name}. Testing on training"
                " images gives wrong results. Remove each image from one of the two splits."
            )


def _classes(listing):
    """Returns {label: name} of the classes of all roles."""
    return {label: text for named in listing.labels.values() for label, text in named.items()}
