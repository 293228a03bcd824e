"""The photos for `experiments.losses`, divided into three parts: as features, computed once, and as a list.

    python -m experiments.features --data=FOLDER [--folder=runs/photos]

FOLDER has `cub50.zip` and `caltech101.zip`. The parts are "fit" and "held_out", every fifth of the training
classes, and "test", the other half of the classes. Writes FOLDER_OF_RUNS/data/cub50-split.npz and the like,
MobileNetV2's pooled features (see `benchmarks.photos`), and cub50-split.csv, the paths of the photos.
"""

import csv
import os

import numpy as np
from absl import app

from benchmarks import photos

HELD_OUT = slice(4, None, 5)


def write_features(name: str) -> str:
    """Writes the features of a data set with their parts; returns the path."""
    path = photos.stored_features(name)
    with np.load(path) as arrays:
        columns = dict(arrays)
    classes = np.unique(columns["labels"][columns["split"] == "train"])
    held_out = np.isin(columns["labels"], classes[HELD_OUT])
    columns["split"] = np.where(columns["split"] == "test", "test", np.where(held_out, "held_out", "fit"))
    written = path.replace(".npz", "-split.npz")
    np.savez(written, **columns)
    return written


def write_list(name: str) -> str:
    """Writes the list of the photos of a data set, path, label and split; returns the path."""
    folder = photos.divided(name)
    held_out = sorted(os.listdir(os.path.join(folder, "train")))[HELD_OUT]
    written = f"{folder}-split.csv"
    with open(written, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for part in ("train", "test"):
            for label in sorted(os.listdir(os.path.join(folder, part))):
                split = "test" if part == "test" else "held_out" if label in held_out else "fit"
                for image in sorted(os.listdir(os.path.join(folder, part, label))):
                    writer.writerow([os.path.join(folder, part, label, image), label, split])
    return written


def main(_):
    for name in ("cub50", "caltech101"):
        print(write_features(name), write_list(name))


if __name__ == "__main__":
    app.run(main)
