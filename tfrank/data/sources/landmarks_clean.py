"""Landmarks-clean (Gordo et al., 2016): 586 landmarks in pictures from the web, each with an estimated box.

The published lists, one for train and one for val, have a line per image: its URL, its landmark (0 to 585),
and its box as x1 x2 y1 y2. `annotations_landmarks/annotation_clean_train.txt` begins

    http://www.cepolina.com/photo/[...]/Venice-Arsenal-military-navy.jpg 424 140 235 96 179
    http://www.trickleup.org/solution/images/Working-woman-[...]-local-resources.JPG 408 0 170 0 122
    http://kickingcanceraunatural.files.wordpress.com/2010/09/hollywood-sign.jpg 430 71 741 0 403

The images are not published with the lists. Save those that you download as `images/<MD5 of the URL>.jpg`,
whatever their format, because the file names in the URLs repeat. Or replace the URLs in the lists by the
paths of your files, relative to the folder.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, integer, locate, read_lines

LISTS = {split: f"annotation_clean_{split}.txt" for split in ("train", "val")}


def read_landmarks_clean(folder: str) -> Iterator[SourceImage]:
    """Yields the images of the train list, split "train", then those of the val list, split "val".

    Args:
        folder: path of the folder with the images, and the two lists or `annotations_landmarks/` with them;
            or of the folder that holds it.

    Raises:
        InputError: a list is missing, or a line is not as published.
    """
    expected = "with the images, and the lists in it or in its annotations_landmarks"
    part, paths = locate(folder, list(LISTS.values()), expected, places=("annotations_landmarks", ""))
    for split, path in zip(LISTS, paths):
        for line in read_lines(path):
            place, label, x1, x2, y1, y2 = line.fields(
                url_or_path=str, landmark=integer, x1=coordinate, x2=coordinate, y1=coordinate, y2=coordinate
            )
            box = (x1, y1, x2 - x1, y2 - y1)
            name = local_path(place)
            yield SourceImage(
                split=split, path=posixpath.join(part, name), label=label, text=str(label), id=name, box=box
            )


def local_path(place: str) -> str:
    """Returns the path where the image of a URL is expected; a path is returned unchanged.

    >>> local_path("http://ruhistory.narod.ru/mocsow/pushka1.jpg")
    'images/bc4e9845f8272842acc168d35bdf98a9.jpg'
    >>> local_path("424/17.jpg")
    '424/17.jpg'
    """
    if not re.match(r"\w+://", place):
        return place
    digest = hashlib.md5(place.encode("utf-8", "surrogateescape"), usedforsecurity=False)
    return f"images/{digest.hexdigest()}.jpg"
