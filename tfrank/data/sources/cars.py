"""CARS196 (Krause et al., 2013): models of cars, the first 98 for training, the others for testing.

There are two layouts. In the first, cars_annos.mat is beside car_ims/, which `car_ims.tgz` unpacks to. This
MATLAB file has the structs `annotations`, with the fields relative_im_path, bbox_x1, bbox_y1, bbox_x2,
bbox_y2, class and test, and `class_names`. The first two annotations, with their class names, are

    car_ims/000001.jpg  112  7  853  717  1  0        AM General Hummer SUV 2000
    car_ims/000002.jpg   48 24  441  202  1  0        Acura RL Sedan 2012

In the second, the same images are in cars_train/ and cars_test/, and the files of `car_devkit.tgz` in
devkit/. The annotations in cars_train_annos.mat and cars_test_annos_withlabels.mat have fname (00001.jpg) in
place of relative_im_path and test. cars_meta.mat has `class_names`.
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
# Lists of the devkit, with the folder of their images.
LISTS = {"cars_train_annos.mat": "cars_train", "cars_test_annos_withlabels.mat": "cars_test"}
DEVKIT = ("devkit", "car_devkit/devkit", "")
TRAIN_CLASSES = 98


def read_cars(folder: str) -> Iterator[SourceImage]:
    """Yields the images with their boxes; a class is a model of a year, counted from 0.

    The split into cars_train and cars_test, or by the field `test`, is not used. It belongs to the
    classification protocol and has images of each class on both sides.

    Args:
        folder: path of the folder with cars_annos.mat and car_ims, or with cars_train, cars_test and devkit;
            or of the folder that holds it. cars_test_annos_withlabels.mat may lie beside devkit.

    Raises:
        InputError: a file is missing or damaged.
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
    expected = f"with {LIST} and car_ims, or with {', '.join(LISTS.values())} and devkit"
    part, (path,) = locate(folder, [LIST], expected)
    for row in _annotations(path, _names(path), "relative_im_path"):
        yield part, *row


def _of_devkit(folder):
    train, test = LISTS
    expected = "with cars_train, cars_test and devkit"
    part, (first, named) = locate(folder, [train, NAMES], expected, places=DEVKIT)
    places = [os.path.dirname(first), *(os.path.join(folder, part, place) for place in DEVKIT)]
    second = next(filter(os.path.isfile, (os.path.join(place, test) for place in places)), None)
    if second is None:
        raise InputError(
            f"{places[0]} has no {test}. The devkit's own cars_test_annos.mat has no classes. Download that"
            " file too, and put it there."
        )
    names = _names(named)
    for path, images in zip((first, second), LISTS.values()):
        # In some archives the folder is inside a folder of the same name.
        inner = f"{images}/{images}"
        start = inner if os.path.isdir(os.path.join(folder, part, inner)) else images
        for name, *row in _annotations(path, names, "fname"):
            yield part, f"{start}/{name}", *row


def _names(path: str) -> dict[int, str]:
    """Returns {number: name} of the classes, numbered from 1."""
    with _reading(path):
        content = scipy.io.loadmat(path, squeeze_me=True)
        return dict(enumerate(map(str, np.atleast_1d(content["class_names"])), start=1))


def _annotations(path: str, names: dict[int, str], field: str) -> list[tuple]:
    """Returns (path of the image, number of its class, name of its class, box) of all annotations."""
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
    except Exception as error:  # SciPy raises almost any exception for a damaged file.
        why = reason_of_damage(path, repr(error))
        raise InputError(f"{path} is damaged ({why}). Download it again.") from None
