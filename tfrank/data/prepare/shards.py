"""Writes a data set's images to shards: the work of the worker processes."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tfrank.common import files, json_files
from tfrank.common.normalize import SMALLEST_NORM
from tfrank.data import near_copies, vectors
from tfrank.data.index import RecordIndex, concatenate, load_index
from tfrank.data.prepare import screenshots
from tfrank.data.prepare.image_files import BadImage, ImageFile, checked_image
from tfrank.data.prepare.listing import Listing, image_of, lines_at, read_images
from tfrank.data.prepare.workers import Counts
from tfrank.data.records import ImageRecord, write_shard
from tfrank.data.sources.image import SourceImage

# Increase it when the same image is written differently.
FORMAT = 3
# Maximum size of an image file; a record of 2 GB cannot be written.
MAX_FILE_BYTES = 2**30

# What is kept of a photo until all are written: a hash that is equal for equal files with equal box and
# landmarks, the shorter side in pixels before it was shrunk, whether it looks like a screenshot, and a
# thumbnail, see `data.near_copies`.
LOOK = np.dtype(
    [
        ("hash", np.int64),
        ("side", np.int32),
        ("screenshot", np.bool_),
        ("thumbnail", np.uint8, (near_copies.SIDE, near_copies.SIDE)),
    ]
)


class Skipped(NamedTuple):
    """An image that was left out, and the reason."""

    split: str
    path: str
    reason: str


# The note that a shard is done.
DONE = json_files.record(
    {
        "digest": json_files.text(),
        "skipped": json_files.list_of(json_files.list_of(json_files.text(), at_least=3, at_most=3)),
        "changes": json_files.dict_of(json_files.whole()),
    }
)


class Written(NamedTuple):
    """The result of writing a shard.

    Attributes:
        skipped: images that were left out.
        changes: how many of the other images were "kept" byte for byte, and how many were changed in each way
            of `image_files.ImageFile`.
    """

    skipped: list[Skipped]
    changes: dict[str, int]


def read_file(path: str) -> bytes:
    """Reads an image's file; raises BadImage if it is missing, too large, or changes meanwhile."""
    try:
        kind = os.stat(path).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise ValueError("it is a pipe or a device")  # Reading it may never end.
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
            after = os.fstat(file.fileno())
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadImage(f"cannot be read ({reason})") from None
    if (before.st_size, before.st_mtime_ns) != (len(data), after.st_mtime_ns):
        raise BadImage("changed while it was read")
    return data


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """The data that a worker needs to write a shard.

    Attributes:
        path: path of the shard.
        listing: path of the list of images.
        starts: `[images]` int64, first bytes of the lines of the shard's images.
        repeated: positions in `starts` of the images whose id an earlier image of the list has.
        folder: the folder that the images' paths are relative to.
        shorter_side: see `image_files.checked_image`.
        looks: whether to keep a `LOOK` of each photo.
        left_out: positions in `starts` of the images that are not wanted.
        read: reads the file at a path; raises BadImage if that fails.
    """

    path: str
    listing: str
    starts: np.ndarray
    repeated: frozenset[int]
    folder: str
    shorter_side: int
    looks: bool = False
    left_out: frozenset[int] = frozenset()
    read: Callable[[str], bytes] = read_file

    def path_of(self, image: SourceImage) -> str:
        """The path of an image's file."""
        return image.path if files.is_remote(image.path) else os.path.join(self.folder, image.path)

    def digest(self) -> str:
        """Hashes what determines the shard's content; of image files, only size and modification time."""
        folder = self.folder if files.is_remote(self.folder) else os.path.abspath(self.folder)
        about = f"{FORMAT} {self.shorter_side} {sorted(self.repeated)} {folder} {sorted(self.left_out)}"
        digest = hashlib.sha256(about.encode(errors="surrogateescape"))
        for line in lines_at(self.listing, self.starts):
            digest.update(line)
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(self.path_of(image_of(line)))
                digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        return digest.hexdigest()


def shard_tasks(
    listing: Listing,
    split: str,
    folder: str,
    work: str,
    *,
    num_shards: int,
    shorter_side: int = 0,
    looks: bool = False,
) -> list[ShardTask]:
    """Distributes a split's images over shards `<split>-00000-of-00004.tfrecord` and so on."""
    return [
        ShardTask(
            path=os.path.join(work, f"{split}-{k:05d}-of-{num_shards:05d}.tfrecord"),
            listing=listing.path,
            starts=listing.starts[k::num_shards],
            repeated=frozenset(place // num_shards for place in listing.repeated if place % num_shards == k),
            folder=folder,
            shorter_side=shorter_side,
            looks=looks,
        )
        for k in range(num_shards)
    ]


def write(task: ShardTask, counts: Counts) -> Written:
    """Writes a shard, and beside it its own index, the looks of its photos, and a note that it is done.

    Does not write the shard if `counts` is stopped meanwhile.
    """
    skipped, changes, looks, digest = [], collections.Counter(), [], task.digest()
    try:
        index = write_shard(_records(task, counts, skipped, changes, looks), task.path)
    except _Stopped:
        return Written(skipped, changes)
    index.save(shard_index_path(task))
    with files.atomic_write(looks_path(task)) as file:
        np.save(file, np.array(looks, LOOK))
    files.write_json(done_path(task), {"digest": digest, "skipped": skipped, "changes": changes})
    return Written(skipped, changes)


def finished(task: ShardTask) -> Written | None:
    """Returns the result for a shard that an interrupted preparation has written; None if it has not."""
    try:
        if _note(task)["digest"] != task.digest():
            return None
        if len(load_index(shard_index_path(task))) != len(load_looks(task)) and task.looks:
            return None
        return written(task)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # A file is missing or damaged, so the shard is written again.


def written(task: ShardTask) -> Written:
    """Returns the result for a shard that has been written."""
    note = _note(task)
    return Written([Skipped(*row) for row in note["skipped"]], dict(note["changes"]))


def _note(task):
    return json_files.read(done_path(task), DONE, "Run the same command again.", most_bytes=2**28)


def load_looks(task: ShardTask) -> np.ndarray:
    """Loads the `LOOK` of each record of a shard, `[records]`; none if the task keeps none."""
    return np.load(looks_path(task), allow_pickle=False)


def joined(tasks: Iterable[ShardTask]) -> RecordIndex:
    """Returns one index of several written shards. The shards themselves may be elsewhere."""
    return concatenate([load_index(shard_index_path(task), check_shards=False) for task in tasks])


def shard_index_path(task: ShardTask) -> str:
    """Returns the path of a shard's own index, which is used until there is one of all shards."""
    return f"{task.path}.index"


def looks_path(task: ShardTask) -> str:
    """Returns the path of the looks of a shard's photos."""
    return f"{task.path}.looks.npy"


def done_path(task: ShardTask) -> str:
    """Returns the path of the note that a shard is done, which is written last."""
    return f"{task.path}.done.json"


class _Stopped(Exception):
    """Raised to end work early."""


def _records(
    task: ShardTask,
    counts: Counts,
    skipped: list[Skipped],
    changes: collections.Counter[str],
    looks: list[tuple],
) -> Iterator[ImageRecord]:
    """Yields the records of usable images; adds to `skipped`, `changes` and `looks`."""
    for number, image in enumerate(read_images(task.listing, task.starts)):
        if number in task.left_out:
            counts.add()
            continue
        try:
            if number in task.repeated:
                raise BadImage(f"another image has the id {image.id!r}")
            data = task.read(task.path_of(image)) if image.encoded is None else image.encoded
            checked = _checked(image, data, task.shorter_side)
            record = _record(image, checked)
        except BadImage as error:
            skipped.append(Skipped(image.split, image.path or image.id, str(error)))
            counts.add(0, bad=1)
        else:
            counts.add()
            changes.update(checked.changes or ("kept",))
            if task.looks:
                looks.append(_look(image, data, checked))
            yield record
        if counts.stopped:
            raise _Stopped


def _checked(image: SourceImage, data: bytes, shorter_side: int) -> ImageFile:
    """Returns what is stored of an image or of a vector; raises BadImage if it cannot be used."""
    if image.format != vectors.FORMAT:
        return checked_image(data, shorter_side=shorter_side)
    vector = vectors.decode(data)
    if not np.isfinite(vector).all():
        raise BadImage("a number is not finite")
    if np.linalg.norm(vector.astype(np.float64)) < SMALLEST_NORM:
        raise BadImage(f"its norm is below {SMALLEST_NORM:g}")
    return ImageFile(data, image.format, width=len(vector), height=1)


def _look(image: SourceImage, data: bytes, file: ImageFile) -> tuple:
    """Returns the `LOOK` of an image; that of a vector has no thumbnail."""
    digest = hashlib.blake2b(repr((image.box, image.landmarks)).encode(), digest_size=8)
    digest.update(data)
    content = int.from_bytes(digest.digest(), "little", signed=True)
    if image.format == vectors.FORMAT:
        return content, file.width, False, np.zeros(LOOK["thumbnail"].shape, np.uint8)
    screenshot = screenshots.looks_like_one(data)
    return content, min(file.width, file.height), screenshot, near_copies.thumbnail(file.encoded)


def _record(image: SourceImage, file: ImageFile) -> ImageRecord:
    """Returns the record of an image; raises BadImage if its box is not in the image."""
    width, height = file.width, file.height
    return ImageRecord(
        encoded=file.encoded,
        format=file.format,
        label=image.label,
        text=image.text,
        filename=image.path,
        id=image.id,
        category=image.category,
        category_text=image.category_text,
        role=image.role,
        group=image.group,
        box=_box_shares(image.box, width, height),
        landmarks=image.landmarks and tuple((x / width, y / height) for x, y in image.landmarks),
    )


def _box_shares(box, width, height):
    if box is None:
        return None
    x, y, w, h = box
    left, top, right, bottom = x / width, y / height, (x + w) / width, (y + h) / height
    if not (left < 1 and top < 1 and right > 0 and bottom > 0 and w > 0 and h > 0):
        raise BadImage(f"its box {box} is not in the image of {width} x {height} pixels")
    return max(left, 0.0), max(top, 0.0), min(right, 1.0), min(bottom, 1.0)
