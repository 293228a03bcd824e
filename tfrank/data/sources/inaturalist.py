"""iNaturalist 2018 (Van Horn et al., 2018) in the retrieval split of Smooth-AP (Brown et al., 2020).

`Inat_dataset_splits`, published with Smooth-AP, is beside the competition's folder `train_val2018`. Each line
of its lists is the path of an image, with group and species, as in the competition's own files:

    train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4a.jpg
"""

import posixpath
from collections.abc import Iterator

from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.lists import integer, locate, read_lines

LISTS = {split: f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")}


def read_inaturalist(folder: str) -> Iterator[SourceImage]:
    """Yields the images of both lists; a class is a species, and its label is the competition's number.

    Args:
        folder: path of the folder with Inat_dataset_splits and train_val2018, or of the folder that
            holds it.

    Raises:
        InputError: a list is missing, or a line is not of the form above.
    """
    part, paths = locate(folder, list(LISTS.values()), "with Inat_dataset_splits and train_val2018")
    for split, path in zip(LISTS, paths):
        for line in read_lines(path):
            try:
                _, group, species, _ = line.text.split("/")
                label = integer(species)
            except ValueError:
                raise line.error("a path train_val2018/<group>/<number of a species>/<image>.jpg") from None
            yield SourceImage(
                split=split,
                path=posixpath.join(part, line.text),
                label=label,
                text=f"{group}/{species}",
                id=line.text,
            )
