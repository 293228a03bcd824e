"""Photos that a data set has more than once, found by content: what a person is told of them."""

import csv
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.common import files
from tfrank.data.index import UNKNOWN, RecordIndex


class Duplicate(NamedTuple):
    """A photo that is byte for byte one that comes before it."""

    image: str
    split: str
    label: int
    same_as: str
    split_of_that: str
    label_of_that: int


class Duplicates(NamedTuple):
    """The photos that are there more than once, each beside the first like it; training images are first.

    Attributes:
        divided: in test, and the first is in train.
        mixed: of another class than the first.
        repeated: how many are of the class and the split of the first.
    """

    divided: list[Duplicate]
    mixed: list[Duplicate]
    repeated: int


def find_duplicates(indexes: Mapping[str, RecordIndex], hashes: Mapping[str, np.ndarray]) -> Duplicates:
    """The duplicates among the records of all splits.

    Args:
        indexes: of the splits, by name.
        hashes: `[records]` int64 of each split, equal for equal photos.
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

    divided, mixed, repeated = [], [], 0
    for image in np.flatnonzero(first != np.arange(len(first))):
        one = first[image]
        if splits[split_of[one]] == "train" and splits[split_of[image]].startswith("test"):
            divided.append(Duplicate(*described(image), *described(one)))
        elif label[image] != label[one] and UNKNOWN not in (label[image], label[one]):
            mixed.append(Duplicate(*described(image), *described(one)))
        else:
            repeated += int(split_of[image] == split_of[one])
    return Duplicates(divided, mixed, repeated)


def sentences(found: Duplicates, path: str) -> list[str]:
    """What to say of duplicates that `path` lists."""
    said = []
    for pairs, where, why in (
        (found.divided, "in train and in test", "The test asks for what was trained on."),
        (found.mixed, "in two classes", "One of the two is wrong."),
    ):
        if pairs:
            one = pairs[0]
            count = f"{len(pairs):,} photos are" if len(pairs) > 1 else "1 photo is"
            said.append(
                f"Warning: {count} both {where}, byte for byte: {one.image} is {one.same_as}. {why} Delete"
                f" one of each, then the records, and prepare them again; {path} lists them."
            )
    if found.repeated:
        count = f"{found.repeated:,} photos are" if found.repeated > 1 else "1 photo is"
        said.append(f"Note: {count} there again in the same class, byte for byte.")
    # A name may hold bytes that are no text, and could not be printed.
    return [sentence.encode(errors="backslashreplace").decode() for sentence in said]


def say_duplicates(found: Duplicates, path: str) -> None:
    """Prints what there is to say of duplicates, and lists them in a file where something is to be done."""
    for sentence in sentences(found, path):
        print(sentence, flush=True)
    if found.divided or found.mixed:
        write_duplicates(found, path)


def write_duplicates(found: Duplicates, path: str) -> None:
    """Lists what is in train and in test, or in two classes, in a CSV file."""
    rows = io.StringIO(newline="")
    csv.writer(rows).writerows([Duplicate._fields, *found.divided, *found.mixed])
    with files.atomic_write(path) as file:
        file.write(rows.getvalue().encode(errors="surrogateescape"))
