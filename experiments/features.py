"""Features of the photos, computed once, for `experiments.losses`.

    python -m experiments.features --data=FOLDER [--folder=runs/photos]

FOLDER has `cub50.zip` and `caltech101.zip`. Writes FOLDER_OF_RUNS/data/cub50-split.npz and the like:
MobileNetV2's pooled features (see `benchmarks.photos`), with the splits "fit" and "held_out", every fifth of
the training classes, and "test", the other half of the classes.
"""

import numpy as np
from absl import app

from benchmarks import photos


def main(_):
    for name in ("cub50", "caltech101"):
        path = photos.stored_features(name)
        with np.load(path) as arrays:
            columns = dict(arrays)
        classes = np.unique(columns["labels"][columns["split"] == "train"])
        held_out = np.isin(columns["labels"], classes[4::5])
        columns["split"] = np.where(columns["split"] == "test", "test", np.where(held_out, "held_out", "fit"))
        written = path.replace(".npz", "-split.npz")
        np.savez(written, **columns)
        parts, sizes = np.unique(columns["split"], return_counts=True)
        print(written, dict(zip(parts.tolist(), sizes.tolist())))


if __name__ == "__main__":
    app.run(main)
