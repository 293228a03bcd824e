"""What a source yields: one image of a data set as its official lists describe it, before it is read."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

ROLES = ("", "query", "gallery", "distractor")
# What a column of an index holds for records that lack it, such as the class.
UNKNOWN = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceImage:
    """One image of a data set.

    Attributes:
        split: "train", "test", or what the data set calls its other parts.
        path: of the file, relative to the source's folder, with forward slashes; "" where `encoded` is given.
        label: class; images of a class share it, in all splits. -1 where the data set has no classes.
        text: the class in words.
        id: a name that no other image of its split has.
        encoded: the bytes of the file, for data that is no folder of files.
        category: a coarser class, if there is one.
        box: of the object, (x, y, width, height) in pixels of the image turned upright as its EXIF says, if
            known.
        landmarks: of a face, five (x, y) in the same pixels: left eye, right eye, nose, left and right corner
            of the mouth, as they appear in the image; if known.
        role: one of `ROLES`; "" where every image is a query in turn and the others are its gallery.
        group: images of a group, such as a video's frames, are one instance whose embeddings are averaged.
    """

    split: str
    path: str
    label: int
    text: str
    id: str
    encoded: bytes | None = None
    category: int | None = None
    box: tuple[float, float, float, float] | None = None
    landmarks: tuple[tuple[float, float], ...] | None = None
    role: str = ""
    group: int | None = None


class Count(NamedTuple):
    """How many classes and images a part of a data set has; None where that is not published."""

    classes: int | None
    images: int


class Source(NamedTuple):
    """A data set.

    Attributes:
        read: from the path of its folder, and options by name, to its images.
        counts: official ones, by split, or "split role" where roles are counted apart: "test query".
        remark: where papers print other counts than the official files have.
        missing: how many of the listed images cannot be had any more.
        ground_truth: from the folder to what labels cannot say, as JSON, by id of the query.
        own: whether these are a user's own images, which may be too few or larger than is of use.
        templates: from the folder to `data.templates.Templates`, where these are what is compared.
        found: whether a folder has the layout of this source; None of sources that have one layout only.
        other: the same data set in another layout.
    """

    read: Callable[..., Iterator[SourceImage]]
    counts: Mapping[str, Count] = {}
    remark: str = ""
    missing: str = ""
    ground_truth: Callable[[str], dict] | None = None
    own: bool = False
    templates: Callable[[str], Any] | None = None
    found: Callable[[str], bool] | None = None
    other: "Source | None" = None

    def in_layout_of(self, folder: str) -> "Source":
        """The source itself, or `other` where the folder has its layout alone."""
        if self.other and self.other.found(folder) and not self.found(folder):
            return self.other
        return self
