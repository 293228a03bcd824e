"""What the tests of preparing share: folders of images, and what is written for them."""

import csv
import io
import os
import pathlib

import numpy as np
import PIL.Image

from tfrank.data.prepare import builder
from tfrank.data.prepare.builder import prepare
from tfrank.data.sources.image import Source, SourceImage


def picture(number, size=(12, 8)):
    """The bytes of a PNG of random pixels."""
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, [size[1], size[0], 3], np.uint8)
    PIL.Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write_images(folder, classes=6, images=5):
    """A folder of folders; a class has `images` images, the first one more."""
    for c in range(classes):
        place = folder / f"class {c}"
        place.mkdir(parents=True)
        for number in range(images + (c == 0)):
            (place / f"{number}.png").write_bytes(picture(100 * c + number))
    return folder


def prepare_folder(images, output, **options):
    return prepare("folder", str(images), output, options={"test_share": 0.5}, **options)


def files_of(folder):
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def skipped_in(folder):
    with open(os.path.join(folder, "skipped.csv"), errors="surrogateescape", newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def in_source(monkeypatch, *listed):
    """Makes a source of these images."""
    monkeypatch.setitem(builder.SOURCES, "folder", Source(lambda folder: iter(listed)))


def listed(path, **fields):
    return SourceImage(**{"split": "train", "path": path, "label": 1, "text": "a", "id": path, **fields})
