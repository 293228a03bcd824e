"""What a source yields: one image of a data set as its official lists describe it, before it is read."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

ROLES = ("", "query", "gallery", "distractor")


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
        box: of the object, (x, y, width, height) in pixels, if known.
        landmarks: of a face, five (x, y) in pixels: left eye, right eye, nose, left and right corner of the
            mouth, as they appear in the image; if known.
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
    """

    read: Callable[..., Iterator[SourceImage]]
    counts: Mapping[str, Count] = {}
    remark: str = ""


def compare_counts(source: Source, counts: Mapping[str, Count]) -> list[str]:
    """A line for each part of a data set that has not the official number of classes or images.

    A part that is not there counts as empty. The data set's remark, if any, comes last.

    Args:
        source: the data set, with its official counts.
        counts: what was found, with the same keys; others are left alone.

    >>> sop = Source(read=iter, counts={"train": Count(11_318, 59_551)})
    >>> compare_counts(sop, {"train": Count(11_318, 59_550)})
    ['train: 59,550 images of 11,318 classes; officially 59,551 of 11,318: 1 image fewer.']
    """
    lines = [
        _difference(part, counts.get(part, Count(0, 0)), official) for part, official in source.counts.items()
    ]
    remark = [source.remark] if source.remark else []
    return [line for line in lines if line] + remark


def _difference(part: str, found: Count, official: Count) -> str:
    """The line of a part, or nothing where its counts are the official ones."""
    images, classes = _amount(found.images, "image"), ""
    officially, differences = f"{official.images:,}", [_change(found.images, official.images, "image")]
    if None not in (found.classes, official.classes):
        classes = f" of {_amount(found.classes, 'class')}"
        officially += f" of {official.classes:,}"
        differences.append(_change(found.classes, official.classes, "class"))
    change = ", ".join(filter(None, differences))
    return f"{part}: {images}{classes}; officially {officially}: {change}." if change else ""


def _change(found: int, official: int, noun: str) -> str:
    """1 image fewer, 2 classes more, or nothing."""
    if found == official:
        return ""
    return f"{_amount(abs(found - official), noun)} {'more' if found > official else 'fewer'}"


def _amount(number: int, noun: str) -> str:
    """1 image, 2 images, 2 classes."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"
