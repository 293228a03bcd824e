"""What is found in photos of which copies were made, and whose classes were split and merged on purpose.

    python -m benchmarks.review ../shared/data/caltech101.zip [more archives]

An archive has a folder of photos a class. Printed are, of 200 photos, the shares whose made copy is found
with its original; the photos that have near copies as they are, and pairs of them in two classes; and, as
EfficientNet-Lite0 sees the photos, over three draws of ten classes split at random into halves, and of ten
pairs merged: the share of right ones among the first ten findings, and of all findings.
"""

import io
import os
import sys
import tempfile
import zipfile
from collections.abc import Sequence

import numpy as np
from absl import app
from PIL import Image, ImageEnhance

from tfrank.data.near_copies import near_copies, thumbnail
from tfrank.search.class_review import double_classes, mixed_classes
from tfrank.search.embedder import Embedder
from tfrank.search.start import export_start

COPIED, DRAWS, CHANGED, FEWEST = 200, 3, 10, 16


def encoded(image: Image.Image, quality: int = 82) -> bytes:
    """The JPEG of an image."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def cropped(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """The image without 5 % of its width and of its height, at sides drawn at random."""
    width, height = image.size
    left, top = random.uniform(0, 0.05, 2) * image.size
    return image.crop((round(left), round(top), round(left + 0.95 * width), round(top + 0.95 * height)))


MADE = {
    "JPEG of quality 60": lambda image, _: encoded(image, 60),
    "half the size": lambda image, _: encoded(image.resize((image.width // 2, image.height // 2))),
    "5 % cropped": lambda image, random: encoded(cropped(image, random)),
    "30 % brighter": lambda image, _: encoded(ImageEnhance.Brightness(image.convert("RGB")).enhance(1.3)),
}


def print_copies(files: Sequence[bytes], names: np.ndarray) -> None:
    """Prints how many copies are found that were made, and what is found in the photos as they are."""
    random = np.random.default_rng(0)
    rows, chosen = np.stack([thumbnail(file) for file in files]), random.permutation(len(files))[:COPIED]
    for name, make in MADE.items():
        copies = np.stack([thumbnail(make(Image.open(io.BytesIO(files[row])), random)) for row in chosen])
        group = np.arange(len(rows) + len(copies))
        for members in near_copies(np.concatenate([rows, copies])):
            group[members] = members[0]
        print(f"{name}: {np.mean(group[len(rows) :] == group[chosen]):.3f} found")
    groups = near_copies(rows)
    across, copies = sum(len(set(names[members])) > 1 for members in groups), sum(map(len, groups))
    print(f"As they are: {copies:,} of {len(rows):,} in {len(groups)} groups, {across} of two classes")


def print_classes(embeddings: np.ndarray, labels: np.ndarray) -> None:
    """Prints how many findings are classes that were split, and classes that were merged."""
    found = {"look like one": [], "look like two": []}
    classes, counts = np.unique(labels, return_counts=True)
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        split = random.choice(classes[counts >= FEWEST], CHANGED, replace=False)
        halves, parts = labels.copy(), {}
        for number, label in enumerate(split):
            rows = random.permutation(np.flatnonzero(labels == label))
            halves[rows[: len(rows) // 2]] = parts[label] = len(classes) + number
        found["look like one"].append(
            [parts.get(one.first) == one.second for one in mixed_classes(embeddings, halves)]
        )
        merged, pairs = labels.copy(), random.permutation(classes)[: 2 * CHANGED].reshape(-1, 2)
        for first, second in pairs:
            merged[labels == second] = first
        found["look like two"].append(
            [one.label in pairs[:, 0] for one in double_classes(embeddings, merged)]
        )
    for what, draws in found.items():
        first, whole = np.mean([np.mean(one[:CHANGED]) for one in draws]), np.concatenate(draws)
        print(
            f"{what}: {first:.2f} right of the first ten, {whole.mean():.2f} of all {len(whole) / DRAWS:.1f}"
        )


def main(argv: Sequence[str]) -> None:
    """Prints both for each archive."""
    if len(argv) < 2:
        sys.exit("Give archives of photos, a folder a class: python -m benchmarks.review photos.zip")
    for path in argv[1:]:
        with zipfile.ZipFile(path) as archive:
            paths = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))
            files = [archive.read(name) for name in paths]
        names, labels = np.unique([os.path.dirname(name) for name in paths], return_inverse=True)
        print(f"\n{path}")
        print_copies(files, names[labels])
        with tempfile.TemporaryDirectory() as folder:
            export_start(os.path.join(folder, "start"))
            print_classes(Embedder(os.path.join(folder, "start")).embed(files), labels)


if __name__ == "__main__":
    app.run(main)
