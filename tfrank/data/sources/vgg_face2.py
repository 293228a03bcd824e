"""VGGFace2 (Cao et al., 2018): faces of 8,631 identities for training and of 500 others for testing.

Images are `train/n000002/0001_01.jpg`, `test/n000001/0001_01.jpg` and so on, with one folder per identity.
`train_list.txt` begins (`test_list.txt` is similar)

    n000002/0001_01.jpg
    n000002/0002_01.jpg
    n000002/0003_01.jpg

`bb_landmark/loose_bb_train.csv` has the boxes of the faces: x, y of the top left corner, width and height.

    NAME_ID,X,Y,W,H
    "n000002/0001_01",161,140,224,324

`bb_landmark/loose_landmark_train.csv` has five points of each face, as x, y.

    NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y
    "n000002/0001_01",239.4643,276.5054,349.8496,282.2599,311.2406,354.8974,236.0358,391.3312,342.1541,392.2661

Both have the images in the order of the list.
"""

import itertools
import os
import posixpath
import re
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, locate, read_lines
from tfrank.data.sources.tables import read_table

LISTS = {split: f"{split}_list.txt" for split in ("train", "test")}
BOX = {"X": coordinate, "Y": coordinate, "W": coordinate, "H": coordinate}
POINTS = {f"P{number}{axis}": coordinate for number in range(1, 6) for axis in "XY"}


def read_vgg_face2(folder: str) -> Iterator[SourceImage]:
    """Yields the images of the train list, split "train", then those of the test list, split "test".

    A label is the number of an identity, 2 for n000002. Boxes and landmarks are read from `bb_landmark/`;
    without that folder there are none. The lists and `bb_landmark/` may lie in `meta/`.

    Args:
        folder: path of the folder with the lists, train and test, or of the folder that holds it.

    Raises:
        InputError: a list is missing, a line is not as published, or the orders differ.
    """
    expected = "with train and test, and the lists in it or in its meta"
    part, lists = locate(folder, list(LISTS.values()), expected, places=("", "meta"))
    places = [os.path.join(folder, part, name) for name in ("bb_landmark", "meta/bb_landmark")]
    place = next(filter(os.path.isdir, places), None)
    for split, listed in zip(LISTS, lists):
        tables = {}
        if place:
            tables = {
                os.path.join(place, f"loose_bb_{split}.csv"): BOX,
                os.path.join(place, f"loose_landmark_{split}.csv"): POINTS,
            }
        yield from _read(split, posixpath.join(part, split), listed, tables)


def _read(split, start, listed, tables):
    """Yields the images of a list, each with its numbers from the tables; these are {path: columns}."""
    rows = (read_table(path, ("NAME_ID", *columns)) for path, columns in tables.items())
    for line, *faces in itertools.zip_longest(read_lines(listed), *rows):
        if line is None:
            row, _ = next(filter(None, faces))
            raise _disorder(row, f"no more faces, since {listed} has no more images")
        match = re.fullmatch(r"((n([0-9]{1,18}))/[^/]+)\.jpg", line.text)
        if not match:
            raise line.error("an image such as n000002/0001_01.jpg")
        name, identity, number = match.groups()
        box, points = [
            _face(line, name, path, face, columns) for (path, columns), face in zip(tables.items(), faces)
        ] or (None, None)
        yield SourceImage(
            split=split,
            path=f"{start}/{line.text}",
            label=int(number),
            text=identity,
            id=name,
            box=box,
            landmarks=points and tuple(zip(points[::2], points[1::2])),
        )


def _face(line, name, path, face, columns):
    """Returns the numbers of a table's row; raises InputError if it is not about the line's image."""
    if face is None:
        raise _disorder(line, f"no more images, since {path} has no more faces")
    row, cells = face
    if cells["NAME_ID"] != name:
        raise _disorder(row, f"the face of {name}, which {line.path} has in line {line.number}")
    return tuple(row.convert([cells[column] for column in columns], columns))


def _disorder(line, expected):
    return line.error(expected, " Use lists and boxes of the same release, in their order.")
