"""The groups of an index: its photos that people, folders or a table say show the same."""

import collections
import csv
import io
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.index import RecordIndex
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.data.records import ImageRecord, write_shard
from tfrank.search import earlier
from tfrank.search.images import Listed
from tfrank.search.index import SearchIndex

FEWEST = 4
# In the folder of a model that an index has learnt: the groups that it was learnt from.
LEARNT = "groups.csv"


class Groups(NamedTuple):
    """The photos of groups of at least two.

    Attributes:
        ids: `[photos]` their ids in the index.
        names: the names of the groups.
        records: their records, labelled with the numbers of their groups.
        embeddings: `[photos, dim]` their embeddings in the index.
        former: `[photos]` the number of the group in which the model of the index has learnt each; -1: none.
        unread: number of photos with a label that cannot be read as they were indexed.
    """

    ids: list[str]
    names: list[str]
    records: RecordIndex
    embeddings: np.ndarray
    former: np.ndarray
    unread: int

    def as_text(self) -> str:
        """Returns what photos are in which group, as `LEARNT` has it."""
        text = io.StringIO()
        names = (self.names[label] for label in self.records.label)
        csv.writer(text, lineterminator="\n").writerows(zip(self.ids, names))
        return text.getvalue()


def read_groups(index: SearchIndex, shard: str) -> Groups:
    """Reads the groups of an index and writes a record of each photo to a file.

    Raises:
        InputError: there are fewer than four groups, or the model has learnt these very groups already.
    """
    label_of = dict(zip(index.ids.tolist(), index.labels))
    _check(label_of)
    listed = [one for one in earlier.as_indexed(index.files, index.version) if label_of[one.id]]
    good = {one.id: image for one in listed if (image := _checked(one))}
    label_of = _of_two({key: label_of[key] for key in good})
    _check(label_of, len(listed) - len(good))
    names = sorted(set(label_of.values()))
    number = {name: place for place, name in enumerate(names)}
    records = write_shard(
        (
            ImageRecord(
                encoded=good[key].encoded,
                format=good[key].format,
                label=number[name],
                text=name,
                filename=key,
                id=key,
            )
            for key, name in label_of.items()
        ),
        shard,
    )
    row_of = {key: row for row, key in enumerate(index.ids.tolist())}
    embeddings = index.embeddings[[row_of[key] for key in label_of]]
    learnt = _learnt(index)
    if learnt == label_of:
        raise InputError(
            f"The model of {index.files.folder} has learnt these groups already. Give more labels."
        )
    formers = {name: place for place, name in enumerate(sorted(set(learnt.values())))}
    former = np.array([formers[learnt[key]] if key in learnt else -1 for key in label_of])
    return Groups([*label_of], names, records, embeddings, former, len(listed) - len(good))


def _checked(image: Listed):
    """Returns the image of a photo as a record holds it; None if it is not as it was indexed."""
    try:
        return checked_image(image.read(), shorter_side=SHORTER_SIDE)
    except (BadImage, OSError):
        return None


def _of_two(label_of: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels that two photos or more have; "" is none."""
    count = collections.Counter(label_of.values())
    return {key: label for key, label in label_of.items() if label and count[label] > 1}


def _check(label_of: Mapping[str, str], unread: int = 0) -> None:
    """Raises InputError if there are too few groups to hold some out."""
    found = len(set(_of_two(label_of).values()))
    if found < FEWEST:
        gone = f" ({unread:,} photos with a label cannot be read as they were indexed)" if unread else ""
        are = "is 1 group" if found == 1 else f"are {found} groups"
        raise InputError(
            f"It takes {FEWEST} groups of at least two photos, to learn from some and test on others. There"
            f" {are}{gone}. Label more photos."
        )


def _learnt(index: SearchIndex) -> dict[str, str]:
    """Returns the groups that the model of an index was learnt from, by id; {} for other models."""
    model = index.files.path("models", index.version.model)
    if not os.path.isfile(os.path.join(model, LEARNT)):
        return {}
    with files.open_below(model, LEARNT) as file:
        return {
            row[0]: row[1] for row in csv.reader(io.TextIOWrapper(file, "utf-8", newline="")) if len(row) == 2
        }
