"""Finds photos that a data set has more than once, by content, and reports them."""

import csv
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.common import files
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import RecordIndex


class Duplicate(NamedTuple):
    """A photo that is byte for byte the same as an earlier one."""

    image: str
    split: str
    label: int
    same_as: str
    same_as_split: str
    same_as_label: int


class Duplicates(NamedTuple):
    """Photos that occur more than once, each with its first occurrence; training images come first.

    Attributes:
        across_splits: photos in test whose first occurrence is in train.
        across_classes: other photos whose first occurrence has another class, where both classes are known.
        repeated: number of other photos in the same split as their first occurrence.
    """

    across_splits: list[Duplicate]
    across_classes: list[Duplicate]
    repeated: int


def find_duplicates(indexes: Mapping[str, RecordIndex], hashes: Mapping[str, np.ndarray]) -> Duplicates:
    """Finds the duplicates among the records of all splits.

    Args:
        indexes: the index of each split, by name.
        hashes: `[records]` int64 for each split, equal for equal photos.
    """
    splits = sorted(indexes, key=lambda split: (split != "train", split))
    starts = np.cumsum([0, *(len(indexes[split]) for split in splits)])
    split_of = np.repeat(np.arange(len(splits)), np.diff(starts))
    label = np.concatenate([indexes[split].label for split in splits])
    content = np.concatenate([hashes[split] for split in splits])
    _, firsts, group = np.unique(content, return_index=True, return_inverse=True)
    first = firsts[group]

    def described(number):
        split = splits[split_of[number]]
        row = number - starts[split_of[number]]
        return indexes[split].id[row].decode(errors="surrogateescape"), split, int(label[number])

    across_splits, across_classes, repeated = [], [], 0
    for image in np.flatnonzero(first != np.arange(len(first))):
        one = first[image]
        if splits[split_of[one]] == "train" and splits[split_of[image]].startswith("test"):
            across_splits.append(Duplicate(*described(image), *described(one)))
        elif label[image] != label[one] and UNKNOWN not in (label[image], label[one]):
            across_classes.append(Duplicate(*described(image), *described(one)))
        else:
            repeated += int(split_of[image] == split_of[one])
    return Duplicates(across_splits, across_classes, repeated)


def sentences(found: Duplicates, path: str) -> list[str]:
    """Returns the messages about duplicates, which `path` lists."""
    said = []
    for pairs, where, why in (
        (found.across_splits, "in train and in test", "Testing on training images gives wrong results."),
        (found.across_classes, "in two classes", "One of the two is wrong."),
    ):
        if pairs:
            one = pairs[0]
            count = f"{len(pairs):,} photos are" if len(pairs) > 1 else "1 photo is"
            said.append(
                f"Warning: {count} both {where}, byte for byte, such as {one.image} and {one.same_as}. {why}"
                f" Delete one of each, then the records, and prepare them again. {path} lists them."
            )
    if found.repeated:
        count = f"{found.repeated:,} photos are" if found.repeated > 1 else "1 photo is"
        said.append(f"Note: {count} repeated in the same class, byte for byte.")
    # A file name may hold bytes that are not valid text and cannot be printed.
    return [sentence.encode(errors="backslashreplace").decode() for sentence in said]


def report_duplicates(found: Duplicates, path: str) -> None:
    """Prints messages about duplicates, and writes a list of them if the user has to act."""
    for sentence in sentences(found, path):
        print(sentence, flush=True)
    if found.across_splits or found.across_classes:
        write_duplicates(found, path)


def write_duplicates(found: Duplicates, path: str) -> None:
    """Writes a CSV file of the photos that are in train and in test, or in two classes."""
    rows = io.StringIO(newline="")
    csv.writer(rows).writerows([Duplicate._fields, *found.across_splits, *found.across_classes])
    with files.atomic_write(path) as file:
        file.write(rows.getvalue().encode(errors="surrogateescape"))
