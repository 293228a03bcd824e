"""CARS196 (Krause et al., 2013): models of cars, the first 98 to train on, the others to test.

Beside car_ims/, which `car_ims.tgz` unpacks to, stands cars_annos.mat, a MATLAB file with the structs
`annotations`, of the fields relative_im_path, bbox_x1, bbox_y1, bbox_x2, bbox_y2, class and test, and
`class_names`. The first two annotations and names are of the form

    car_ims/000001.jpg  112  7  853  717  1  0        AM General Hummer SUV 2000
    car_ims/000002.jpg   48 24  441  202  1  0        Acura RL Sedan 2012
"""

import posixpath
from collections.abc import Iterator

import numpy as np
import scipy.io

from tfrank.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, locate, size

LIST = "cars_annos.mat"
TRAIN_CLASSES = 98


def read_cars(folder: str) -> Iterator[SourceImage]:
    """The images with their boxes; a class is a model of a year, counted from 0.

    The file's own `test` belongs to another protocol, of classification: it has images of each class on
    both sides, and is not used.

    Args:
        folder: path of the folder with cars_annos.mat and car_ims, or of the folder that holds it.

    Raises:
        InputError: where the file is missing or damaged.
    """
    part, (annotations,) = locate(folder, [LIST], f"that of {LIST} and car_ims")
    for path, number, name, box in _annotations(annotations):
        yield SourceImage(
            split="train" if number <= TRAIN_CLASSES else "test",
            path=posixpath.join(part, path),
            label=number - 1,
            text=name,
            id=path,
            box=box,
        )


def _annotations(path: str) -> list[tuple]:
    """(path of the image, number of its class, name of its class, box) of all annotations."""
    try:
        content = scipy.io.loadmat(path, squeeze_me=True)
        names = dict(enumerate(map(str, np.atleast_1d(content["class_names"])), start=1))
        rows = []
        for fields in np.atleast_1d(content["annotations"]):
            number = int(fields["class"])
            x1, y1, x2, y2 = (float(fields[f"bbox_{corner}"]) for corner in ("x1", "y1", "x2", "y2"))
            box = (coordinate(x1), coordinate(y1), size(x2 - x1), size(y2 - y1))
            rows.append((str(fields["relative_im_path"]), number, names[number], box))
        if not rows:
            raise ValueError("no annotations")
    except Exception as error:  # A damaged file makes scipy raise almost anything.
        raise InputError(f"{path} is damaged ({error!r}). Download it again.") from None
    return rows
