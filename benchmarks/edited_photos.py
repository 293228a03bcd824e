"""How often an index takes an edited photo for another picture, and another picture for an edited photo.

    python -m benchmarks.edited_photos FOLDER [FOLDER ...]

400 photos of each folder, drawn at random, are an index of EfficientNet-Lite0, not adapted. 80 of them are
edited, or replaced by others of the 400, under their old names. Prints the share, in percent, that loses its
label by `search.label_moves`.
"""

import glob
import io
import os
import sys
import tempfile
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from tfrank.search.building import blocks
from tfrank.search.embedder import BATCH, Embedder
from tfrank.search.label_moves import NEARER, nearer
from tfrank.search.start import export_start

PHOTOS, CHANGED = 400, 80


def encoded(image: Image.Image, quality: int = 90) -> bytes:
    """An image as a JPEG file."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality)
    return file.getvalue()


def middle(image: Image.Image, share: float) -> Image.Image:
    """The middle of an image, with this share of its sides."""
    return ImageOps.fit(
        image, (round(share * image.width), round(share * image.height)), bleed=(1 - share) / 2
    )


EDITS: dict[str, Callable[[Image.Image], bytes]] = {
    "quality 40": lambda image: encoded(image, 40),
    "half the side": lambda image: encoded(image.reduce(2)),
    "brighter": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.4)),
    "mirrored": lambda image: encoded(ImageOps.mirror(image)),
    "cropped to 80 %": lambda image: encoded(middle(image, 0.8)),
    "cropped to 60 %": lambda image: encoded(middle(image, 0.6)),
    "gray": lambda image: encoded(ImageOps.grayscale(image)),
    "turned": lambda image: encoded(image.rotate(90, expand=True)),
}


def taken_back(before: np.ndarray, rows: np.ndarray, now: np.ndarray) -> float:
    """The share of changed photos, in percent, that count as another picture.

    Args:
        before: `[photos, dim]` embeddings of the index.
        rows: the photos that are changed.
        now: `[rows, dim]` embeddings after the change.
    """
    index = before.copy()
    index[rows] = now
    return 100 * float(np.mean(nearer(before[rows], now, [index]) > NEARER))


def main(folders: list[str]) -> None:
    with tempfile.TemporaryDirectory() as start:
        export_start(os.path.join(start, "model"))
        embedder = Embedder(os.path.join(start, "model"))

    def embed(files):
        return np.concatenate([embedder.embed(some) for some in blocks(files, BATCH)])

    print(f"{'':20}" + "".join(f"{title:>17}" for title in [*EDITS, "another picture"]))
    for folder in folders:
        draw = np.random.default_rng(0)
        paths = sorted(glob.glob(f"{folder}/**/*.[jp][pn]g", recursive=True))
        images = [Image.open(path) for path in draw.permutation(paths)[:PHOTOS]]
        images = [ImageOps.exif_transpose(image).convert("RGB") for image in images]
        before = embed([encoded(image, 95) for image in images])
        rows, others = draw.permutation(len(images))[: 2 * CHANGED].reshape(2, -1)
        found = [
            taken_back(before, rows, embed([edit(images[row]) for row in rows])) for edit in EDITS.values()
        ]
        found.append(taken_back(before, rows, before[others]))
        print(f"{os.path.basename(folder):20}" + "".join(f"{share:17.1f}" for share in found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
