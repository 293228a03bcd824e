"""Stanford Online Products (Song et al., 2016): products on eBay, in 12 categories.

`Stanford_Online_Products.zip` unpacks to one folder per category and the lists Ebay_train.txt and
Ebay_test.txt. The first list begins

    image_id class_id super_class_id path
    1 1 1 bicycle_final/111085122871_0.JPG
    2 1 1 bicycle_final/111085122871_1.JPG
"""

import posixpath
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import integer, locate, read_lines

LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
HEADER = "image_id class_id super_class_id path"


def read_sop(folder: str) -> Iterator[SourceImage]:
    """Yields the images of both lists; a class is a product, its category is the super class.

    The lists count classes and categories from 1; here they are counted from 0.

    Args:
        folder: path of Stanford_Online_Products, or of the folder that holds it.

    Raises:
        InputError: a list is missing, or a line is not of the form above.
    """
    names = list(LISTS.values())
    part, paths = locate(folder, names, f"Stanford_Online_Products, with {' and '.join(names)}")
    for split, listed in zip(LISTS, paths):
        lines = read_lines(listed, at_least=2)
        header = next(lines)
        if header.text.split() != HEADER.split():
            raise header.error(f"the header {HEADER!r}")
        for line in lines:
            _, product, category, path = line.fields(
                image_id=integer, class_id=integer, super_class_id=integer, path=str
            )
            name = path.split("/")[0].removesuffix("_final")
            yield SourceImage(
                split=split,
                path=posixpath.join(part, path),
                label=product - 1,
                text=f"{name} {product}",
                id=path,
                category=category - 1,
                category_text=name,
            )
