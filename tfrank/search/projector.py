"""Files for TensorBoard's embedding projector: vectors, metadata, and a sprite of small images."""

import io
import math
import os

import numpy as np
from PIL import Image, ImageOps
from tensorboard.plugins import projector

from tfrank.common import files
from tfrank.search.index import SearchIndex

# The projector computes t-SNE and UMAP in the browser, which takes minutes for more images than this.
MOST = 5000
# Side of an image in the sprite, in pixels.
SIDE = 64
VECTORS, METADATA, SPRITE = "vectors.tsv", "metadata.tsv", "sprite.png"


def write(index: SearchIndex, folder: str, most: int = MOST) -> int:
    """Writes a folder that `tensorboard --logdir` shows; returns how many images it has.

    Args:
        index: the index.
        folder: the folder; made if it does not exist.
        most: greatest number of images. Of more, some are taken, evenly spread over the index.
    """
    files.make_folder(folder)
    count = min(most, len(index))
    rows = np.arange(count) * len(index) // count
    with files.atomic_write(os.path.join(folder, VECTORS)) as file:
        np.savetxt(file, index.embeddings[rows], fmt="%.6g", delimiter="\t")
    with files.atomic_write(os.path.join(folder, METADATA), "w") as file:
        columns = [name for name in index.table.column_names if name != "path"]
        lines = [columns, *index.table.select(columns).take(rows).to_pylist()]
        file.writelines(
            "\t".join(map(_cell, line if line is columns else line.values())) + "\n" for line in lines
        )
    sprite = Image.new("RGB", (SIDE * math.ceil(math.sqrt(count)),) * 2, "white")
    for number, image_id in enumerate(index.ids[rows].tolist()):
        row, column = divmod(number, sprite.width // SIDE)
        sprite.paste(_small(index, image_id), (SIDE * column, SIDE * row))
    with files.atomic_write(os.path.join(folder, SPRITE)) as file:
        sprite.save(file, "png")
    config = projector.ProjectorConfig()
    shown = config.embeddings.add(tensor_name="images", tensor_path=VECTORS, metadata_path=METADATA)
    shown.sprite.image_path = SPRITE
    shown.sprite.single_image_dim.extend([SIDE, SIDE])
    projector.visualize_embeddings(folder, config)
    return count


def _cell(value: object) -> str:
    """Returns a value as one cell: without tabs and line ends."""
    return " ".join(str("" if value is None else value).split())


def _small(index: SearchIndex, image_id: str) -> Image.Image:
    """Returns a thumbnail on a white square; the square alone if there is no thumbnail."""
    try:
        data = index.files.read_thumbnail(image_id)
    except OSError:
        return Image.new("RGB", (SIDE, SIDE), "white")
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.pad(image.convert("RGB"), (SIDE, SIDE), color="white")
