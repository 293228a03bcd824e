"""The groups of an index: its photos that people, folders or a table say show the same."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.common.csv_text import csv_text
from tfrank.data.index import RecordIndex, select
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.data.records import ImageRecord, write_shard
from tfrank.search import earlier
from tfrank.search.images import Listed
from tfrank.search.index import SearchIndex
from tfrank.search.learnt import groups_of

FEWEST = 4


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
        """Returns what photos are in which group, as `learnt.GROUPS` has it."""
        return csv_text((key, self.names[label]) for key, label in zip(self.ids, self.records.label))


def read_groups(index: SearchIndex, shard: str) -> Groups:
    """Reads the groups of an index and writes a record of each photo to a file.

    Raises:
        InputError: there are fewer than four groups, or the model has learnt these very groups already.
    """
    label_of = _of_two(dict(zip(index.ids.tolist(), index.labels)))
    _check(label_of)
    listed = [one for one in earlier.as_indexed(index.files, index.version) if one.id in label_of]
    # One after the other: all photos of a large index do not fit into memory.
    records = write_shard(_records(listed, label_of), shard)
    ids = [key.decode(errors="surrogateescape") for key in records.id]
    unread, label_of = len(listed) - len(ids), _of_two({key: label_of[key] for key in ids})
    _check(label_of, unread)
    names = sorted(set(label_of.values()))
    number = {name: place for place, name in enumerate(names)}
    records = select(records, np.array([row for row, key in enumerate(ids) if key in label_of]))
    records = dataclasses.replace(records, label=np.array([number[name] for name in label_of.values()]))
    row_of = {key: row for row, key in enumerate(index.ids.tolist())}
    embeddings = index.embeddings[[row_of[key] for key in label_of]]
    learnt = groups_of(index.files.path("models", index.version.model))
    if learnt == label_of:
        raise InputError(
            f"The model of {index.files.folder} has learnt these groups already. Give more labels."
        )
    formers = {name: place for place, name in enumerate(sorted(set(learnt.values())))}
    former = np.array([formers[learnt[key]] if key in learnt else -1 for key in label_of])
    return Groups([*label_of], names, records, embeddings, former, unread)


def _records(listed: Iterable[Listed], label_of: Mapping[str, str]) -> Iterator[ImageRecord]:
    """Yields records of the photos that are as they were indexed."""
    for one in listed:
        try:
            image = checked_image(one.read(), shorter_side=SHORTER_SIDE)
        except (BadImage, OSError):
            continue
        yield ImageRecord(
            encoded=image.encoded,
            format=image.format,
            label=0,
            text=label_of[one.id],
            filename=one.id,
            id=one.id,
        )


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
