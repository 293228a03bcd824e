"""Indexes of signs in groups, which people say are the same."""

import os
import pathlib

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfrank.search import building, labels
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images


def write_groups(folder: pathlib.Path, groups: int, photos: int = 4) -> dict[str, str]:
    """Writes photos of signs, each group of another one on grounds of any colour; returns the group by id.

    Random weights see the colour, and a trained network the sign.
    """
    folder.mkdir(parents=True)
    font = ImageFont.truetype(os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 80)
    group_of = {}
    for group in range(groups):
        for number in range(photos):
            draw = np.random.default_rng([group, number])
            image = Image.new("RGB", (128, 128), tuple(draw.integers(90, 256, 3).tolist()))
            place = tuple(draw.integers(15, 40, 2).tolist())
            ImageDraw.Draw(image).text(place, "OX8LT#S"[group], fill="black", font=font)
            name = f"{group}-{number}.png"
            image.save(folder / name)
            group_of[name] = f"group {group}"
    return group_of


def write_index(
    folder: pathlib.Path, model: pathlib.Path, group_of: dict[str, str], photos: pathlib.Path
) -> str:
    """Makes an index without folders of classes, and gives the labels; returns its path."""
    listed = listed_images(str(photos))
    building.update(str(folder), Embedder(str(model)), listed, root=str(photos), quiet=True)
    labels.change(str(folder), group_of, labels.said(str(folder)).version)
    return str(folder)
