"""CUB-200-2011 (Wah et al., 2011): birds of 200 species, the first 100 to train on, the others to test on.

`CUB_200_2011.tgz` unpacks to a folder with images/ and, among others, these lists (first lines shown):

    images.txt              1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
    image_class_labels.txt  1 1
    bounding_boxes.txt      1 60.0 27.0 325.0 304.0
    classes.txt             1 001.Black_footed_Albatross

A line begins with the number of an image; in classes.txt, of a class. A box is x, y, width and height.
"""

import posixpath
from collections.abc import Callable, Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import coordinate, integer, locate, read_lines, size

LISTS = ("images.txt", "image_class_labels.txt", "bounding_boxes.txt", "classes.txt")
TRAIN_CLASSES = 100


def read_cub(folder: str) -> Iterator[SourceImage]:
    """Yields the images with their boxes; a class is a species, counted from 0.

    The split is that of retrieval papers. train_test_split.txt is not used; it has images of each species on
    both sides.

    Args:
        folder: path of CUB_200_2011, or of the folder that holds it.

    Raises:
        InputError: a list is missing, a line is not of the form above, or an image has no class, no class
            name or no box.
    """
    part, paths = locate(folder, LISTS, f"CUB_200_2011, with images and {', '.join(LISTS)}")
    classes = _table(paths[1], image_id=integer, class_id=integer)
    boxes = _table(paths[2], image_id=integer, x=coordinate, y=coordinate, width=size, height=size)
    names = _table(paths[3], class_id=integer, class_name=str)
    for line in read_lines(paths[0]):
        image, path = line.fields(image_id=integer, image_name=str)
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
    """Returns the rows of a list, by their first column."""
    rows = (line.fields(**columns) for line in read_lines(path))
    return {number: row for number, *row in rows}
