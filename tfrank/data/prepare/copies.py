"""Near copies among the photos of a data set: which train and test share, and what is done with them.

| `near_copies` | |
|---|---|
| keep | all photos stay where they are |
| drop | photos of train that have a near copy in test are left out |
| together | classes that share near copies go to one of the two, the one with more of their photos |
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.connected import groups_of, members_of
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import RecordIndex
from tfrank.data.near_copies import MOST_PHOTOS, near_copies
from tfrank.data.prepare.listing import Listing, read_images
from tfrank.data.prepare.shards import ShardTask
from tfrank.data.record_folder import DROPPED, Copy, shared
from tfrank.data.sources.image import SourceImage

CHOICES = ("keep", "drop", "together")


def find_copies(
    indexes: Mapping[str, RecordIndex], looks: Mapping[str, np.ndarray], names: Mapping[int, str]
) -> list[Copy]:
    """Returns the photos that have near copies, group by group.

    Args:
        indexes: the index of each split, by name.
        looks: the `shards.LOOK` of each record, by split.
        names: the name of each class.
    """
    thumbnails = np.concatenate([looks[split]["thumbnail"] for split in indexes])
    if len(thumbnails) > MOST_PHOTOS:
        print(f"Note: near copies are looked for among at most {MOST_PHOTOS:,} photos, so not here.")
        return []
    splits = np.repeat(list(indexes), list(map(len, indexes.values())))
    ids = np.concatenate([index.id for index in indexes.values()])
    labels = np.concatenate([index.label for index in indexes.values()])
    # Vectors have no thumbnails.
    groups = near_copies(thumbnails) if thumbnails.any() else []
    return [
        Copy(
            number,
            str(splits[row]),
            names.get(int(labels[row]), ""),
            ids[row].decode(errors="surrogateescape"),
        )
        for number, rows in enumerate(groups, 1)
        for row in rows
    ]


def without_copies(tasks: Mapping[str, Sequence[ShardTask]], copies: Sequence[Copy]) -> dict[str, list]:
    """Returns the tasks of all splits, those of train without the photos that have a near copy in test.

    Raises:
        InputError: no two classes of train are left.
    """
    dropped, changed = {one.id for one in shared(copies, "train", "test")}, []
    left = set()
    for task in tasks.get("train", ()):
        images = list(read_images(task.listing, task.starts))
        places = frozenset(place for place, image in enumerate(images) if image.id in dropped)
        changed.append(dataclasses.replace(task, left_out=places))
        left |= {image.label for image in images if image.id not in dropped}
    if dropped and len(left) < 2:
        raise InputError(
            f"{len(dropped):,} photos of train have a near copy in test. Without them train has fewer than"
            " two classes. Prepare with --option=near_copies=keep, or give photos that are no copies."
        )
    return {**tasks, "train": changed} if changed else dict(tasks)


def classes_together(copies: Sequence[Copy], listings: Mapping[str, Listing]) -> Iterator[SourceImage]:
    """Yields all images, those of classes that share near copies in one split.

    Raises:
        InputError: there are other splits than train and test, or images with a role; or one of the two would
            have fewer than two classes.
    """
    if listings.keys() != {"train", "test"} or any(listings["test"].labels.keys() - {""}):
        raise InputError(
            "near_copies=together needs the splits train and test, without queries and gallery. Prepare with"
            " --option=near_copies=drop."
        )
    images = collections.Counter()
    for split, listing in listings.items():
        rows = read_images(listing.path, listing.starts)
        images.update((image.text, split) for image in rows if image.label != UNKNOWN)
    splits = {text: split for text, split in sorted(images)}
    for texts in _connected((one for one in copies if one.label in splits), list(splits)):
        counts = [sum(images[text, split] for text in texts) for split in ("train", "test")]
        splits |= dict.fromkeys(texts, "train" if counts[0] >= counts[1] else "test")
    if min(list(splits.values()).count(split) for split in ("train", "test")) < 2:
        raise InputError(
            "The classes share so many near copies that train and test cannot have two classes each with"
            " near_copies=together. Prepare with --option=near_copies=drop or keep."
        )
    for split, listing in listings.items():
        for image in read_images(listing.path, listing.starts):
            # One without a class stays.
            yield dataclasses.replace(image, split=splits.get(image.text, split))


def _connected(copies: Iterable[Copy], names: list[str]) -> list[list[str]]:
    """Returns the classes of each group of classes that share near copies."""
    number = {name: place for place, name in enumerate(names)}
    first, pairs = {}, []
    for one in copies:
        pairs.append((first.setdefault(one.group, number[one.label]), number[one.label]))
    if not pairs:
        return []
    group = groups_of(*np.array(pairs).T, len(names))
    return [[names[place] for place in part] for part in members_of(group)]


def as_dropped(copies: Sequence[Copy]) -> list[Copy]:
    """Returns the near copies, of which those are marked that `without_copies` leaves out."""
    left_out = set(shared(copies, "train", "test"))
    return [one._replace(split=DROPPED) if one in left_out else one for one in copies]


def across_sentences(copies: Sequence[Copy], path: str) -> list[str]:
    """Returns a sentence on the near copies that test has in train, which the file `path` lists, if any."""
    if not (across := shared(copies, "test", "train")):
        return []
    near = next(one for one in shared(copies, "train", "test") if one.group == across[0].group)
    names = " and ".join(files.text_of(one.id) for one in (across[0], near))
    return [
        f"{_have(across)} a near copy in train, such as {names}: results look better than they are. {path}"
        " lists them. Prepare into another folder with --option=near_copies=drop, or =together."
    ]


def other_sentences(copies: Sequence[Copy], path: str) -> list[str]:
    """Returns sentences on other near copies: those that were dropped, and those within test."""
    said, dropped = [], [one for one in copies if one.split == DROPPED]
    if dropped:
        count = "1 near copy" if len(dropped) == 1 else f"{len(dropped):,} near copies"
        said.append(f"Left out of train: {count} of test photos. {path} lists them.")
    if repeated := shared(copies, "test", "test"):
        said.append(f"{_have(repeated)} a near copy in test, such as burst shots. {path} lists them.")
    return said


def _have(found):
    return "1 photo of test has" if len(found) == 1 else f"{len(found):,} photos of test have"
