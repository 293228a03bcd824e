"""IJB-C (Maze et al., 2018) in InsightFace's release: loose crops, templates, and pairs of templates.

The 469,375 images are `loose_crop/1.jpg`, `loose_crop/2.jpg` and so on. `meta/ijbc_face_tid_mid.txt` has a
line for each image: its template, a set of images of one person, and its media, the photo or video that it
is from:

    1.jpg 1 69544

`meta/ijbc_name_5pts_score.txt` lists the images in the same order, each with the five points of its face, x
and y in pixels of the crop, and the detector's score, which is not used:

    1.jpg x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score

`meta/ijbc_template_pair_label.txt` has 15,658,489 pairs of templates, with 1 for the 19,557 pairs of the same
person and 0 for the others:

    1 11065 1
"""

import itertools
import os
import posixpath
from collections.abc import Iterator

import numpy as np

from tfrank.common.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import Line, coordinate, find, integer, locate, read_lines
from tfrank.data.templates import Templates

IMAGES, POINTS, PAIRS = (
    "ijbc_face_tid_mid.txt",
    "ijbc_name_5pts_score.txt",
    "ijbc_template_pair_label.txt",
)
_PLACES = ("meta", "")
_BLOCK_LINES = 2**16


def _number(word: str) -> int:
    """Returns a word of digits as a 32-bit integer; raises ValueError otherwise."""
    if (number := integer(word)) > np.iinfo(np.int32).max:
        raise ValueError(word)
    return number


def _same(word: str) -> int:
    """Returns 0 or 1; raises ValueError for another word."""
    return ("0", "1").index(word)


_KIND = "(a whole number below 2^31)"
_IMAGE = {"image": str, f"template {_KIND}": _number, f"media {_KIND}": _number}
_POINTS = {f"{axis}{number}": coordinate for number in range(1, 6) for axis in "xy"}
_FACE = {"image": str, **_POINTS, "score": coordinate}
_PAIR = {f"template1 {_KIND}": _number, f"template2 {_KIND}": _number, "label (0 or 1)": _same}


def has_templates(folder: str) -> bool:
    """Returns whether a folder, or one directly inside it, has a list of this layout."""
    return any(find(folder, name, _PLACES) for name in (IMAGES, POINTS, PAIRS))


def read_ijb_c_templates(folder: str) -> Iterator[SourceImage]:
    """Yields the crops with their landmarks, split "test", without classes; see `templates` for the pairs.

    Args:
        folder: path of the folder with `loose_crop/` and `meta/`, or of the folder that holds it.

    Raises:
        InputError: a list is missing, a line is not as published, or the orders differ.
    """
    part, listed, faces, _ = _located(folder)
    for line, face in itertools.zip_longest(read_lines(listed), read_lines(faces)):
        if line is None:
            raise _disorder(face, f"no more faces, since {listed} has no more images")
        name, _, _ = line.fields(**_IMAGE)
        if face is None:
            raise _disorder(line, f"no more images, since {faces} has no more faces")
        named, *points, _ = face.fields(**_FACE)
        if named != name:
            raise _disorder(face, f"the face of {name}, which {listed} has in line {line.number}")
        yield SourceImage(
            split="test",
            path=posixpath.join(part, "loose_crop", name),
            label=-1,
            text="",
            id=name,
            landmarks=tuple(zip(points[::2], points[1::2])),
        )


def templates(folder: str) -> Templates:
    """Reads the templates of the images, and the pairs of templates.

    Args:
        folder: path of the folder with `meta/`, or of the folder that holds it.

    Raises:
        InputError: a list is missing, a line is not as published, or a template of a pair has no image.
    """
    _, listed, _, paired = _located(folder)
    ids, template, media = zip(*(line.fields(**_IMAGE) for line in read_lines(listed)))
    pairs = read_pairs(paired)
    found = Templates(
        np.array(list(map(os.fsencode, ids))), *(np.array(c, np.int32) for c in (template, media)), pairs
    )
    unknown = np.setdiff1d(pairs[:, :2], found.template)
    if len(unknown):
        row = int(np.argmax((pairs[:, :2] == unknown[0]).any(axis=1)))
        raise InputError(
            f"{paired}: the pair {' '.join(map(str, pairs[row]))} has template {unknown[0]}, which has no"
            f" image in {listed}. Use both lists of the same release."
        )
    return found


def read_pairs(path: str) -> np.ndarray:
    """`[pairs, 3]` int32 of a list of pairs: two templates, and 1 if they are of one person, else 0.

    Needs little memory beyond the result, which has 188 MB for IJB-C.

    Raises:
        InputError: the list is empty or cannot be read, or a line is not as published.
    """
    try:
        with open(path, "rb") as file:
            pairs = np.empty([1 + sum(block.count(b"\n") for block in _chunks(file)), 3], np.int32)
            file.seek(0)
            count = first = 0
            while lines := list(itertools.islice(file, _BLOCK_LINES)):
                block = _parsed(path, first, lines)
                pairs[count : count + len(block)] = block
                count, first = count + len(block), first + len(lines)
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from None
    if not count:
        raise InputError(f"{path} is truncated: it has no pairs. Unpack or download it again.")
    return pairs[:count]


def _chunks(file):
    return iter(lambda: file.read(2**20), b"")


def _parsed(path, first, lines):
    """Returns the pairs of some lines of a list; the first line has number `first` + 1."""
    if not any(map(bytes.strip, lines)):
        return np.empty([0, 3], np.int32)
    try:
        block = np.loadtxt(lines, np.int32, comments=None, ndmin=2)
        if block.shape[1] == 3 and block.min() >= 0 and block[:, 2].max() <= 1:
            return block
    except ValueError:
        pass  # A line is wrong. Parsing line by line finds it, but takes ten times as long.
    texts = (line.decode(errors="backslashreplace").strip() for line in lines)
    rows = [Line(path, n, text).fields(**_PAIR) for n, text in enumerate(texts, start=first + 1) if text]
    return np.array(rows, np.int32).reshape(-1, 3)


def _located(folder):
    """Returns the data set's folder, relative to `folder`, and the paths of its lists."""
    present = [name for name in (IMAGES, POINTS, PAIRS) if find(folder, name, _PLACES)]
    # Locate by a list that exists, so that missing ones are looked for beside it.
    ordered = sorted((IMAGES, POINTS, PAIRS), key=lambda name: name not in present)
    expected = f"of InsightFace's IJB-C, with loose_crop and meta/{IMAGES}"
    part, paths = locate(folder, ordered, expected, places=_PLACES)
    path = dict(zip(ordered, paths))
    return part, path[IMAGES], path[POINTS], path[PAIRS]


def _disorder(line, expected):
    return line.error(expected, " Use lists of the same release, in their order.")
