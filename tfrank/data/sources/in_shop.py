"""In-shop Clothes Retrieval (Liu et al., 2016), part of DeepFashion: worn garments, from several sides.

Images are in Img/img or img. The list list_eval_partition.txt is in Eval, in Anno, or beside these folders.
It begins with the number of its images:

    52712
    image_name item_id evaluation_status
    img/WOMEN/Dresses/id_00000002/02_1_front.jpg                           id_00000002 train
"""

import os
import posixpath
from collections.abc import Iterator

from tfrank.common.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import integer, locate, read_lines

LIST = "list_eval_partition.txt"
HEADER = "image_name item_id evaluation_status"
PLACES = {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")}


def read_in_shop(folder: str) -> Iterator[SourceImage]:
    """Yields the images of the list; a class is an item. Queries and gallery form the split "test".

    Args:
        folder: path of the folder with Eval and the images, or of the folder that holds it.

    Raises:
        InputError: the list is missing or cut off, or a line is not of the form above.
    """
    expected = "of In-shop Clothes Retrieval, with Eval and the images"
    part, (path,) = locate(folder, [LIST], expected, places=("Eval", "Anno", ""))
    # Hold the whole list, 52,712 lines, so that a truncated one is refused before any image is read.
    count, header, *lines = read_lines(path, at_least=3)
    (expected,) = count.fields(number_of_images=integer)
    if header.text.split() != HEADER.split():
        raise header.error(f"the header {HEADER!r}")
    if len(lines) != expected:
        raise InputError(
            f"{path} is truncated or changed: it lists {len(lines):,} images, but its first line says"
            f" {expected:,}. Unpack or download it again."
        )
    unpacked = "Img" if os.path.isdir(os.path.join(folder, part, "Img", "img")) else ""
    for line in lines:
        image, item, status = line.fields(image_name=str, item_id=_item_number, evaluation_status=str)
        if status not in PLACES:
            raise line.error(f"an evaluation_status of {', '.join(PLACES)}")
        split, role = PLACES[status]
        yield SourceImage(
            split=split,
            path=posixpath.join(part, unpacked, image),
            label=item,
            text=f"id_{item:08d}",
            id=image,
            role=role,
        )


def _item_number(word):
    """Converts id_00000002 to 2; raises ValueError for another form."""
    if not word.startswith("id_"):
        raise ValueError(word)
    return integer(word.removeprefix("id_"))
