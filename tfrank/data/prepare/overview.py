"""Looks over the photos that a preparation has written: photos that occur twice, and what misleads."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfrank.common import files
from tfrank.data.prepare import copies, shards
from tfrank.data.prepare.advice import advice
from tfrank.data.prepare.duplicates import find_duplicates, report_duplicates
from tfrank.data.prepare.listing import Listing, list_images
from tfrank.data.record_folder import DUPLICATES, NEAR_COPIES, save_copies, shared


def looked_over(
    listings: Mapping[str, Listing],
    written: tuple[Any, ...],
    choice: str,
    write: Callable[..., tuple[Any, ...]],
    output_dir: str,
) -> tuple[tuple[Any, ...], list[str]]:
    """Reports duplicates, near copies and what misleads; drops or moves near copies if told to.

    Args:
        listings: the images of each split.
        written: the tasks of each split, which are written, and what `write` returns besides.
        choice: one of `copies.CHOICES`.
        write: writes the images of listings, whose tasks a second argument may change; returns as `written`.
        output_dir: gets the lists of duplicates and of near copies.

    Returns:
        `written`, or what was written in place of it; and sentences on what would help most, the first most.
    """
    indexes, looks = _seen(written[0])
    hashes = {split: look["hash"] for split, look in looks.items()}
    report_duplicates(find_duplicates(indexes, hashes), os.path.join(output_dir, DUPLICATES))
    names = {label: name for listing in listings.values() for label, name in _classes_of(listing).items()}
    found = copies.find_copies(indexes, looks, names)
    if choice != "keep" and shared(found, "test", "train"):
        if choice == "drop":
            written = write(listings, lambda tasks: copies.without_copies(tasks, found))
            found = copies.as_dropped(found)
        else:
            folder = files.make_folder(os.path.join(os.path.dirname(listings["train"].path), "together"))
            listings = list_images(copies.classes_together(found, listings), folder)
            written = write(listings)
            found = _moved(found, listings)
        indexes, looks = _seen(written[0])
    save_copies(output_dir, found)
    path = os.path.join(output_dir, NEAR_COPIES)
    across, misleading = copies.across_sentences(found, path), advice(indexes, looks, names)
    for sentence in [*across, *copies.other_sentences(found, path), *misleading]:
        print(f"Note: {sentence}", flush=True)
    return written, [*across, *misleading]


def _moved(found, listings):
    """Returns the near copies with the splits that their classes are in now, and says how many have moved."""
    splits = {name: split for split, one in listings.items() for name in _classes_of(one).values()}
    count = len({one.label for one in found if one.split != splits[one.label]})
    who = "1 class moves" if count == 1 else f"{count:,} classes move"
    print(f"Note: {who} to the side of classes with near copies of their photos.", flush=True)
    return [one._replace(split=splits[one.label]) for one in found]


def _seen(tasks):
    """Returns the index of each split, and the looks of its photos."""
    indexes = {split: shards.joined(some) for split, some in tasks.items()}
    return indexes, {
        split: np.concatenate(list(map(shards.load_looks, some))) for split, some in tasks.items()
    }


def _classes_of(listing):
    return {label: name for named in listing.labels.values() for label, name in named.items()}
