"""IJB-C (Maze et al., 2018) for retrieval, as Smooth-AP has it (Brown et al., 2020, section 5.1).

`protocols/ijbc_metadata.csv` has a line for each face: its subject, the picture it is in, which is of
`images/img/` for stills and `images/frames/` for frames of videos, the sighting, which is one appearance
of a subject in a picture or video, and its box in pixels. It begins

    SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT,FRAME_NUM,FACIAL_HAIR,AGE,[...]

Columns are found by their names.
"""

import collections
import math
import os
from collections.abc import Iterator

from tfrank.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import find, read_columns

COLUMNS = ("SUBJECT_ID", "FILENAME", "SIGHTING_ID", "FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")
FEWEST_INSTANCES = 5


def read_ijb_c(folder: str) -> Iterator[SourceImage]:
    """The faces, split "test"; a label is the number of a subject.

    The frames of a sighting of a subject have a `group` of their own: they are one instance, as a still
    is. Subjects of fewer than 5 instances are left out, as are faces of unknown subjects. The file is
    read twice.

    Raises:
        InputError: where the file or a column is missing, or a line is not as published.
    """
    path = find(folder, *(f"{place}ijbc_metadata.csv" for place in ("protocols/", "protocol/", "")))
    images = "images/" if os.path.isdir(os.path.join(folder, "images")) else ""
    stills, videos = _instances(path)
    groups: dict[tuple[int, int], int] = {}
    for subject, name, sighting, box in _faces(path):
        if stills[subject] + len(videos[subject]) < FEWEST_INSTANCES:
            continue
        group = groups.setdefault((subject, sighting), len(groups)) if _is_frame(name) else None
        yield SourceImage(
            split="test",
            path=images + name,
            label=subject,
            text=str(subject),
            # A picture can have several subjects.
            id=f"{os.path.splitext(name)[0]}/{subject}/{sighting}",
            box=box,
            group=group,
        )


def _instances(path):
    """How many stills each subject has, and its sightings in videos."""
    stills, videos = collections.Counter(), collections.defaultdict(set)
    for subject, name, sighting, _ in _faces(path):
        if _is_frame(name):
            videos[subject].add(sighting)
        else:
            stills[subject] += 1
    return stills, videos


def _is_frame(name):
    return name.startswith("frames/")


def _faces(path):
    """(subject, picture, sighting, box or None) of each face of a known subject."""
    for number, (subject, name, sighting, *sides) in read_columns(path, COLUMNS):
        try:
            if not name.startswith(("img/", "frames/")):
                raise ValueError(f"{name!r} is neither in img/ nor in frames/")
            box = tuple(map(_number, sides))
            if math.isfinite(_number(subject)):
                known = all(map(math.isfinite, box))
                yield int(subject), name, int(sighting), box if known else None
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}.") from None


def _number(text):
    """A number; what is not known is empty or NaN."""
    return float(text or "nan")
