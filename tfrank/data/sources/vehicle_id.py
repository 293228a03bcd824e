"""PKU VehicleID (Liu et al., 2016): vehicles seen by surveillance cameras.

`VehicleID_V1.0` holds images such as image/0279029.jpg and, in train_test_split/, the lists train_list.txt
and test_list_{800,1600,2400,3200,6000,13164}.txt, named after their number of vehicles. Each line has an
image and its vehicle; test_list_800.txt begins

    0279029 23781
    0279028 23781
    0279027 23781
"""

import os
import posixpath
from collections.abc import Iterator, Sequence

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import integer, locate, read_lines

TEST_LISTS = (800, 1600, 2400, 3200, 6000, 13164)


def read_vehicle_id(folder: str, *, lists: int | Sequence[int] = (800, 1600, 2400)) -> Iterator[SourceImage]:
    """Yields the images of the train list, then of the test lists; a class is a vehicle.

    Splits are "train", "test_800", "test_1600" and so on. Smaller test sets are parts of the larger ones.

    Args:
        folder: path of VehicleID_V1.0, or of the folder that holds it.
        lists: the test lists to read, by their number of vehicles; a single number reads one list.

    Raises:
        InputError: a list is missing, no list has such a number, or a line is not of the form above.
    """
    lists = [lists] if isinstance(lists, int) else lists
    checks.sequence("lists", lists, checks.one_of, allowed=TEST_LISTS)
    expected = "VehicleID_V1.0, with train_test_split and image"
    part, (train,) = locate(folder, ["train_list.txt"], expected, places=("train_test_split",))
    tests = {n: os.path.join(os.path.dirname(train), f"test_list_{n}.txt") for n in TEST_LISTS}
    there = [str(number) for number, path in tests.items() if os.path.isfile(path)]
    paths = {"train": train} | {f"test_{number}": tests[number] for number in TEST_LISTS if number in lists}
    for path in paths.values():
        if not os.path.isfile(path):
            hint = (
                f" To read the existing ones, prepare with --option=lists={','.join(there)}" if there else ""
            )
            raise InputError(f"The list {path} does not exist. Give the folder {expected}.{hint}")
    for split, path in paths.items():
        for line in read_lines(path):
            image, vehicle = line.fields(image_id=integer, vehicle_id=integer)
            yield SourceImage(
                split=split,
                path=posixpath.join(part, f"image/{image:07d}.jpg"),
                label=vehicle,
                text=str(vehicle),
                id=f"{image:07d}",
            )
