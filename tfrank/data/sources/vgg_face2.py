"""VGGFace2 (Cao et al., 2018): faces of 8,631 identities to train on and of 500 others to test on.

Images are `train/n000002/0001_01.jpg` and `test/n000001/0001_01.jpg`, with a folder an identity.
`train_list.txt` begins (`test_list.txt` likewise)

    n000002/0001_01.jpg
    n000002/0002_01.jpg
    n000002/0003_01.jpg

`bb_landmark/loose_bb_train.csv`, the faces as x, y of the left upper corner, width and height,

    NAME_ID,X,Y,W,H
    "n000002/0001_01",161,140,224,324

and `bb_landmark/loose_landmark_train.csv`, five points as x, y,

    NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y
    "n000002/0001_01",239.4643,276.5054,349.8496,282.2599,311.2406,354.8974,236.0358,391.3312,342.1541,392.2661

have the images in the order of the list.
"""

import itertools
import os
import re
from collections.abc import Iterator

from tfrank.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import find, read_columns, read_lines

BOX = ("X", "Y", "W", "H")
POINTS = tuple(f"P{number}{axis}" for number in range(1, 6) for axis in "XY")


def read_vgg_face2(folder: str) -> Iterator[SourceImage]:
    """The images of the train list, split "train", then of the test list, split "test".

    A label is the number of an identity, 2 for n000002. Boxes and landmarks come with `bb_landmark/`;
    without that folder there are none. The lists and `bb_landmark/` may lie in `meta/`.

    Raises:
        InputError: where a list is missing, a line is not as published, or the orders differ.
    """
    lists = {
        split: find(folder, f"{split}_list.txt", f"meta/{split}_list.txt") for split in ("train", "test")
    }
    for split, path in lists.items():
        yield from _read(split, path, _tables(folder, split))


def _tables(folder, split):
    """The files of the boxes and of the points, with the numbers of each image; none without their folder."""
    folders = [os.path.join(folder, name) for name in ("bb_landmark", "meta/bb_landmark")]
    found = next(filter(os.path.isdir, folders), None)
    if not found:
        return {}
    box, points = (find(found, f"loose_{kind}_{split}.csv") for kind in ("bb", "landmark"))
    return {box: read_columns(box, ("NAME_ID", *BOX)), points: read_columns(points, ("NAME_ID", *POINTS))}


def _read(split, listed, tables):
    lines = ((line.number, line.text) for line in read_lines(listed))
    for (number, line), *entries in itertools.zip_longest(lines, *tables.values(), fillvalue=(0, "")):
        name = os.path.splitext(line)[0]
        faces = [
            _face(path, *entry, name, f"{listed}, line {number}") for path, entry in zip(tables, entries)
        ]
        match = re.fullmatch(r"(n(\d+))/[^/]+\.jpg", line)
        if not match:
            raise InputError(f"{listed}, line {number}, is not such as n000002/0001_01.jpg: {line!r}.")
        box, points = faces or (None, None)
        yield SourceImage(
            split=split,
            path=f"{split}/{line}",
            label=int(match[2]),
            text=match[1],
            id=name,
            box=box,
            landmarks=points and tuple(zip(points[::2], points[1::2])),
        )


def _face(path, number, row, name, listed):
    """The numbers of a row, which should be of the image `name`; "" is what comes after the last."""
    found, *values = row or [""]
    if found != name:
        raise InputError(
            f"{path}, line {number}, has {found or 'no image'!r} where {listed}, has {name or 'no image'!r}"
            " (line 0 is after the last). Take lists and boxes of the same release, in their order."
        )
    try:
        return tuple(map(float, values))
    except ValueError:
        raise InputError(f"{path}, line {number}, should have numbers for {found}, not {values}.") from None
