"""PKU VehicleID (Liu et al., 2016): vehicles seen by surveillance cameras.

`VehicleID_V1.0` holds image/0279029.jpg and its kin, and the lists train_test_split/train_list.txt and
test_list_{800,1600,2400,3200,6000,13164}.txt, named after their number of vehicles. Each line is an
image and its vehicle; test_list_800.txt begins

    0279029 23781
    0279028 23781
    0279027 23781
"""

import os
import posixpath
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import locate, read_lines, whole

LISTS = {"train": "train_test_split/train_list.txt"} | {
    f"test_{vehicles}": f"train_test_split/test_list_{vehicles}.txt"
    for vehicles in (800, 1600, 2400, 3200, 6000, 13164)
}
NEEDED = ("train", "test_800")


def read_vehicle_id(folder: str) -> Iterator[SourceImage]:
    """The images of the lists that are there, train_list.txt and test_list_800.txt at least.

    Splits are "train", "test_800", "test_1600" and so on; the smaller of them are parts of the larger.
    A class is a vehicle.

    Args:
        folder: path of VehicleID_V1.0, or of the folder that holds it.

    Raises:
        InputError: where a needed list is missing, or a line is not of the form above.
    """
    expected = "VehicleID_V1.0, with train_test_split and image"
    part = locate(folder, [LISTS[split] for split in NEEDED], expected)
    for split, name in LISTS.items():
        path = os.path.join(folder, part, name)
        if not os.path.exists(path):
            continue
        for line in read_lines(path):
            image, vehicle = line.fields(image_id=whole, vehicle_id=whole)
            yield SourceImage(
                split=split,
                path=posixpath.join(part, f"image/{image:07d}.jpg"),
                label=vehicle,
                text=str(vehicle),
                id=f"{image:07d}",
            )
