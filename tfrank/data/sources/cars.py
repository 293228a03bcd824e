"""CARS196 (Krause et al., 2013): models of cars, the first 98 to train on, the others to test.

Beside car_ims/, which `car_ims.tgz` unpacks to, stands cars_annos.mat, a MATLAB file with the structs
`annotations`, of the fields relative_im_path, bbox_x1, bbox_y1, bbox_x2, bbox_y2, class and test, and
`class_names`. The first two annotations and names are of the form

    car_ims/000001.jpg  112  7  853  717  1  0        AM General Hummer SUV 2000
    car_ims/000002.jpg   48 24  441  202  1  0        Acura RL Sedan 2012

Or the same images lie in cars_train/ and cars_test/, with the files of `car_devkit.tgz` in devkit/:
cars_train_annos.mat and cars_test_annos_withlabels.mat, whose annotations have fname (00001.jpg) in place of
relative_im_path and test, and cars_meta.mat with `class_names`.
"""

import contextlib
import os
import posixpath
from collections.abc import Iterator

import numpy as np
import scipy.io

from tfrank.common.checks import InputError
from tfrank.data.prepare.web_page import reason_of_damage
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, find, locate, size

LIST = "cars_annos.mat"
NAMES = "cars_meta.mat"
# Of the devkit, with the folder of their images.
LISTS = {"cars_train_annos.mat": "cars_train", "cars_test_annos_withlabels.mat": "cars_test"}
DEVKIT = ("devkit", "car_devkit/devkit", "")
TRAIN_CLASSES = 98


def read_cars(folder: str) -> Iterator[SourceImage]:
    """The images with their boxes; a class is a model of a year, counted from 0.

    The division into cars_train and cars_test, or the field `test`, belongs to another protocol, of
    classification: it has images of each class on both sides, and is not used.

    Args:
        folder: path of the folder with cars_annos.mat and car_ims, or with cars_train, cars_test and devkit;
            or of the folder that holds it. cars_test_annos_withlabels.mat may lie beside devkit.

    Raises:
        InputError: where a file is missing or damaged.
    """
    listed = _of_devkit(folder) if find(folder, next(iter(LISTS)), DEVKIT) else _of_one_list(folder)
    for part, path, number, name, box in listed:
        yield SourceImage(
            split="train" if number <= TRAIN_CLASSES else "test",
            path=posixpath.join(part, path),
            label=number - 1,
            text=name,
            id=path,
            box=box,
        )


def _of_one_list(folder):
    expected = f"that of {LIST} and car_ims, or of {', '.join(LISTS.values())} and devkit"
    part, (path,) = locate(folder, [LIST], expected)
    for row in _annotations(path, _names(path), "relative_im_path"):
        yield part, *row


def _of_devkit(folder):
    train, test = LISTS
    expected = "that of cars_train, cars_test and devkit"
    part, (first, named) = locate(folder, [train, NAMES], expected, places=DEVKIT)
    places = [os.path.dirname(first), *(os.path.join(folder, part, place) for place in DEVKIT)]
    second = next(filter(os.path.isfile, (os.path.join(place, test) for place in places)), None)
    if second is None:
        raise InputError(
            f"There is no {test} in {places[0]}: the devkit's own cars_test_annos.mat does not say which"
            " car an image shows. Fetch that file too, and put it there."
        )
    names = _names(named)
    for path, images in zip((first, second), LISTS.values()):
        # Some archives have the folder inside a folder of the same name.
        inner = f"{images}/{images}"
        start = inner if os.path.isdir(os.path.join(folder, part, inner)) else images
        for name, *row in _annotations(path, names, "fname"):
            yield part, f"{start}/{name}", *row


def _names(path: str) -> dict[int, str]:
    """The names of the classes by their numbers."""
    with _reading(path):
        content = scipy.io.loadmat(path, squeeze_me=True)
        return dict(enumerate(map(str, np.atleast_1d(content["class_names"])), start=1))


def _annotations(path: str, names: dict[int, str], field: str) -> list[tuple]:
    """(path of the image, number of its class, name of its class, box) of all annotations."""
    rows = []
    with _reading(path):
        content = scipy.io.loadmat(path, squeeze_me=True)
        for fields in np.atleast_1d(content["annotations"]):
            number = int(fields["class"])
            x1, y1, x2, y2 = (float(fields[f"bbox_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
            box = (coordinate(x1), coordinate(y1), size(x2 - x1), size(y2 - y1))
            rows.append((str(fields[field]), number, names[number], box))
        if not rows:
            raise ValueError("no annotations")
    return rows


@contextlib.contextmanager
def _reading(path):
    try:
        yield
    except Exception as error:  # A damaged file makes scipy raise almost anything.
        why = reason_of_damage(path, repr(error))
        raise InputError(f"{path} is damaged ({why}). Download it again.") from None
