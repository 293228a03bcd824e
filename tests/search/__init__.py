"""Small photos, and small models that embed them."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from tfrank.export.saved_model import export_saved_model
from tfrank.models.embedding import embedding_model
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images


def write_photo(path: pathlib.Path, seed: int, size: tuple[int, int] = (24, 18)) -> pathlib.Path:
    """Writes a JPEG of a random blot."""
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    blot = Image.fromarray(draw.integers(0, 256, (4, 4, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
    blot.save(path, quality=95)
    return path


def write_photos(folder: pathlib.Path, classes: int = 3, images: int = 4) -> pathlib.Path:
    """Writes one folder a class."""
    for number in range(classes * images):
        write_photo(folder / f"class {number % classes}" / f"{number}.jpg", number)
    return folder


def write_model(folder: pathlib.Path, seed: int = 0, dim: int = 8) -> pathlib.Path:
    """Exports a network with random weights."""
    keras.utils.set_random_seed(seed)
    model = embedding_model(image_size=16, blocks=1, filters=4, embedding_dim=dim)

    def decode(encoded):
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
        return tf.image.resize(tf.ensure_shape(image, [None, None, 3]), [16, 16])

    export_saved_model(model, str(folder), decode)
    return folder


def updated(folder: str | pathlib.Path, embedder: Embedder, source: str | pathlib.Path, **options):
    """Brings an index up to date with the images of a source, as `building.update` does; returns the same."""
    return building.update(
        str(folder), embedder, listed_images(str(source)), root=str(source), quiet=True, **options
    )
