"""IJB-C (Maze et al., 2018) for retrieval, with the protocol of Smooth-AP (Brown et al., 2020, section 5.1).

`protocols/ijbc_metadata.csv` has a line for each face: its subject, its picture, its sighting and its box in
pixels. Pictures are in `images/img/` (stills) and `images/frames/` (frames of videos). A sighting is one
appearance of a subject in a picture or video. The header begins

    SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT,FRAME_NUM,FACIAL_HAIR,AGE,[...]

and continues with INDOOR_OUTDOOR, SKINTONE, GENDER, YAW, ROLL and OCC1 to OCC18. Unknown values are NaN. The
other lines are only for those who signed the licence, so they are not quoted. Columns are found by their
names.
"""

import collections
import os
import posixpath
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, find, integer, locate
from tfrank.data.sources.tables import read_table

LIST = "ijbc_metadata.csv"
FACE = {"SUBJECT_ID": integer, "FILENAME": str, "SIGHTING_ID": integer}
BOX = {"FACE_X": coordinate, "FACE_Y": coordinate, "FACE_WIDTH": coordinate, "FACE_HEIGHT": coordinate}
MIN_INSTANCES = 5
_PLACES = ("protocols", "protocol", "")


def has_metadata(folder: str) -> bool:
    """Returns whether a folder, or one directly inside it, has the list of this layout."""
    return bool(find(folder, LIST, _PLACES))


def read_ijb_c(folder: str) -> Iterator[SourceImage]:
    """Yields the faces, split "test"; a label is the number of a subject.

    An instance is a still, or all frames of one sighting of a subject, which share a `group`. Subjects with
    fewer than 5 instances are left out; so are faces of unknown subjects. The file is read twice.

    Args:
        folder: path of the folder with `protocols/` (or `protocol/`, or the file itself) and `images/` (or
            its contents), or of the folder that holds it.

    Raises:
        InputError: the file or a column is missing, or a line is not as published.
    """
    expected = f"of IJB-C, with images and protocols/{LIST}, or InsightFace's, with loose_crop and meta"
    part, (path,) = locate(folder, [LIST], expected, places=_PLACES)
    images = "images" if os.path.isdir(os.path.join(folder, part, "images")) else ""
    stills, videos = _instances(path)
    groups: dict[tuple[int, int], int] = {}
    for subject, name, sighting, box in _faces(path):
        if stills[subject] + len(videos[subject]) < MIN_INSTANCES:
            continue
        group = groups.setdefault((subject, sighting), len(groups)) if _is_frame(name) else None
        yield SourceImage(
            split="test",
            path=posixpath.join(part, images, name),
            label=subject,
            text=str(subject),
            # The picture's name alone is not unique: it can have several subjects.
            id=f"{os.path.splitext(name)[0]}/{subject}/{sighting}",
            box=box,
            group=group,
        )


def _instances(path):
    """Returns the number of stills of each subject, and its sightings in videos."""
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
    """Yields (subject, picture, sighting, box or None) of each face of a known subject."""
    for line, cells in read_table(path, (*FACE, *BOX)):
        if _is_unknown(cells["SUBJECT_ID"]):
            continue
        subject, name, sighting = line.convert([cells[column] for column in FACE], FACE)
        if not name.startswith(("img/", "frames/")):
            raise line.error("a FILENAME in img/ or frames/")
        sides = [cells[column] for column in BOX]
        box = None if any(map(_is_unknown, sides)) else tuple(line.convert(sides, BOX))
        yield subject, name, sighting, box


def _is_unknown(cell):
    return cell.lower() in ("", "nan")
