"""The types of a source: an image as the data set's lists describe it, before its file is read."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

ROLES = ("", "query", "gallery", "distractor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceImage:
    """One image of a data set.

    Attributes:
        split: "train", "test", or the data set's name for another part.
        path: path of the file, relative to the source's folder, with forward slashes; "" if `encoded` is
            given.
        label: class, the same number in all splits; -1 if the data set has no classes.
        text: the class in words.
        id: a name that no other image of its split has.
        encoded: the bytes of the file, for data that is not a folder of files.
        format: "float32" if the bytes are a vector, see `data.vectors`; "" if they are an image.
        category: a coarser class, if there is one.
        category_text: the category in words.
        box: bounding box of the object, (x, y, width, height) in pixels of the image after it is turned
            upright by its EXIF orientation, if known.
        landmarks: landmarks of a face, five (x, y) in the same pixels: left eye, right eye, nose, left and
            right corner of the mouth, as they appear in the image; if known.
        role: one of `ROLES`; "" if every image is a query in turn and the others are its gallery.
        group: number of a group, such as a video's frames. A group is one instance whose embeddings are
            averaged.
    """

    split: str
    path: str
    label: int
    text: str
    id: str
    encoded: bytes | None = None
    format: str = ""
    category: int | None = None
    category_text: str = ""
    box: tuple[float, float, float, float] | None = None
    landmarks: tuple[tuple[float, float], ...] | None = None
    role: str = ""
    group: int | None = None


class Count(NamedTuple):
    """Number of classes and images of a part of a data set; None if the number of classes is unknown."""

    classes: int | None
    images: int


class Source(NamedTuple):
    """A data set.

    Attributes:
        read: a function of the path of its folder, and of options by name, that yields its images.
        counts: official counts, by split, or by "split role", such as "test query", if roles are counted
            separately.
        remark: how the counts in papers differ from those of the official files.
        missing: how many of the listed images are no longer available.
        ground_truth: a function of the folder that returns the relevance that labels cannot express, as JSON,
            by id of the query.
        config: the config file that trains on it, and extra flags; () for the file `<name of the source>.py`.
        run: the run to evaluate on it, if it has no training images.
        own: whether these are a user's own images, which may be too few, or larger than useful.
        templates: a function of the folder that returns `data.templates.Templates`, if templates are
            compared.
        matches: returns whether a folder has the layout of this source; None for sources with one layout.
        alternative: the same data set in another layout.
    """

    read: Callable[..., Iterator[SourceImage]]
    counts: Mapping[str, Count] = {}
    remark: str = ""
    missing: str = ""
    ground_truth: Callable[[str], dict] | None = None
    config: tuple[str, ...] = ()
    run: str = "RUN"
    own: bool = False
    templates: Callable[[str], Any] | None = None
    matches: Callable[[str], bool] | None = None
    alternative: "Source | None" = None

    def in_layout_of(self, folder: str) -> "Source":
        """Returns the source itself, or `alternative` if the folder has only the layout of that."""
        if self.alternative and self.alternative.matches(folder) and not self.matches(folder):
            return self.alternative
        return self
