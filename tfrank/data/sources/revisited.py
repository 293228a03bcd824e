"""ROxford5k and RParis6k (Radenovic et al., 2018): two cities, queries with boxes, graded relevance.

A folder has all images as `jpg/<name>.jpg`, without subfolders, and `gnd_roxford5k.pkl` or
`gnd_rparis6k.pkl`. This pickle has a dict such as (abridged)

    {"imlist": ["all_souls_000153", ...], "qimlist": ["all_souls_000013", ...],
     "gnd": [{"bbx": [136.5, 34.1, 648.5, 955.7], "easy": [0, ...], "hard": [...], "junk": [...]}, ...]}

"gnd" has an entry for each query: its box x1, y1, x2, y2, and positions in "imlist", from 0, of gallery
images. They show the query's landmark clearly ("easy"), with difficulty ("hard"), or too little to count
("junk").
"""

import os
import posixpath
from collections.abc import Iterator

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.data import restricted_pickle
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import locate, size
from tfrank.data.sources.walk import strict_walk

NAMES = ("roxford5k", "rparis6k")
GRADES = ("easy", "hard", "junk")


def read_roxford5k(folder: str, distractors: str = "") -> Iterator[SourceImage]:
    """Yields the split "test": 70 images of role "query" with boxes, 4,993 of "gallery", then "distractor".

    Classes are unknown, so labels are -1. `ground_truth` says what each query should find.

    Args:
        folder: path of the folder with `gnd_roxford5k.pkl` and `jpg/`, or of the folder that holds it.
        distractors: folder of R1M, of which all images at any depth are read; "" for none.

    Raises:
        InputError: a file or folder is missing, or the pickle is not as published.
    """
    return _read(folder, "roxford5k", distractors)


def read_rparis6k(folder: str, distractors: str = "") -> Iterator[SourceImage]:
    """Reads RParis6k as `read_roxford5k` does: `gnd_rparis6k.pkl`, 70 queries, a gallery of 6,322."""
    return _read(folder, "rparis6k", distractors)


def ground_truth(folder: str, name: str) -> dict[str, dict[str, list[str]]]:
    """Returns the graded relevance: {query id: {"easy": gallery ids, "hard": ids, "junk": ids}}.

    Ids are those of the `SourceImage`s. Images in none of a query's lists are negatives.

    Args:
        folder: path of the folder with the pickle, or of the folder that holds it.
        name: "roxford5k" or "rparis6k".
    """
    _, gallery, queries = _load(folder, name)
    return {
        _id("query", query): {grade: [_id("gallery", gallery[k]) for k in entry[grade]] for grade in GRADES}
        for query, entry in queries.items()
    }


def _read(folder, name, distractors):
    part, gallery, queries = _load(folder, name)
    if distractors and not os.path.isdir(distractors):
        raise InputError(
            f"The folder of distractors does not exist: {distractors}. Correct the option distractors."
        )
    for query, entry in queries.items():
        yield _image("query", posixpath.join(part, f"jpg/{query}.jpg"), query, box=entry["box"])
    for image in gallery:
        yield _image("gallery", posixpath.join(part, f"jpg/{image}.jpg"), image)
    if distractors:
        # Use real paths: `..` after a symbolic link leads elsewhere.
        start = os.path.relpath(os.path.realpath(distractors), os.path.realpath(folder)).replace(os.sep, "/")
        for image in strict_walk(distractors).images():
            yield _image("distractor", f"{start}/{image}", image)


def _image(role, path, name, box=None):
    return SourceImage(split="test", path=path, label=-1, text="", id=_id(role, name), role=role, box=box)


def _id(role, name):
    return f"{role}/{name}"


def _load(folder, name):
    """Returns the part of `folder` with the data, the gallery's names, and {query: box, places by grade}."""
    checks.one_of("name", name, NAMES)
    part, (path,) = locate(folder, [f"gnd_{name}.pkl"], f"with gnd_{name}.pkl and jpg")
    tree = restricted_pickle.load(path)
    try:
        gallery, names = [str(image) for image in tree["imlist"]], [str(query) for query in tree["qimlist"]]
        entries = [_entry(entry, len(gallery)) for entry in tree["gnd"]]
        if len(entries) != len(names):
            raise ValueError(f"{len(names)} queries, {len(entries)} entries")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{path} is not the ground truth of {name}: it should be a dict with imlist, qimlist and gnd,"
            f" which has bbx, easy, hard and junk for each query ({error!r})."
        ) from None
    return part, gallery, dict(zip(names, entries))


def _entry(entry, images):
    box = np.asarray(entry["bbx"], float).ravel().tolist()
    try:
        x1, y1, x2, y2 = box
        box = (x1, y1, size(x2 - x1), size(y2 - y1))
    except ValueError:
        raise ValueError(f"bbx={box}") from None
    places = {grade: np.asarray(entry[grade]).ravel().astype(int).tolist() for grade in GRADES}
    for grade, numbers in places.items():
        if not all(0 <= number < images for number in numbers):
            raise ValueError(f"{grade} has a position outside of imlist")
    return {"box": box, **places}
