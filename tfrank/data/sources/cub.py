"""CUB-200-2011 (Wah et al., 2011): birds of 200 species, the first 100 to train on, the others to test.

`CUB_200_2011.tgz` unpacks to a folder with images/ and, among other lists,

    images.txt              1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
    image_class_labels.txt  1 1
    bounding_boxes.txt      1 60.0 27.0 325.0 304.0
    classes.txt             1 001.Black_footed_Albatross

of which these are the first lines: number of an image (the last: of a class), and what belongs to it.
A box is x, y, width and height.
"""

import posixpath
from collections.abc import Callable, Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, locate, read_lines, size, whole

LISTS = ("images.txt", "image_class_labels.txt", "bounding_boxes.txt", "classes.txt")
TRAIN_CLASSES = 100


def read_cub(folder: str) -> Iterator[SourceImage]:
    """The images with their boxes; a class is a species, counted from 0.

    The split is that of the papers of retrieval, not that of train_test_split.txt, which has images of
    each species on both sides.

    Args:
        folder: path of CUB_200_2011, or of the folder that holds it.

    Raises:
        InputError: where a list is missing, a line is not of the form above, or an image has no class,
            no name of its class or no box.
    """
    part, paths = locate(folder, LISTS, f"CUB_200_2011, with images and {', '.join(LISTS)}")
    classes = _table(paths[1], image_id=whole, class_id=whole)
    boxes = _table(paths[2], image_id=whole, x=coordinate, y=coordinate, width=size, height=size)
    names = _table(paths[3], class_id=whole, class_name=str)
    for line in read_lines(paths[0]):
        image, path = line.fields(image_id=whole, image_name=str)
        try:
            (number,), box = classes[image], boxes[image]
            (name,) = names[number]
        except KeyError:
            raise line.error(f"an image with a class, its name and a box in {', '.join(LISTS[1:])}") from None
        yield SourceImage(
            split="train" if number <= TRAIN_CLASSES else "test",
            path=posixpath.join(part, "images", path),
            label=number - 1,
            text=name,
            id=path,
            box=tuple(box),
        )


def _table(path: str, **columns: Callable) -> dict[int, list]:
    """A list by its first column."""
    rows = (line.fields(**columns) for line in read_lines(path))
    return {number: row for number, *row in rows}
