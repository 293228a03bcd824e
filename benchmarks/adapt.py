"""What an index gains by adapting its model to its photos, without labels.

    python -m benchmarks.adapt --data=FOLDER [--sets=cub50,caltech101] [--model=RUN] [--fit=centre]
                               [--folder=runs/adapt]

FOLDER has an archive of each set, divided as `benchmarks.photos` divides it. The photos of the test classes
are indexed as `tfrank index` does, by the roots of EfficientNet-Lite0's features or by the model of a run.
The former see a wider centre of each photo or, with --fit=centre or whole, its central square or the whole.
Each searches for the others of its class. Prints Recall@1 and mAP in percent by the model as it is and
adapted, of all photos and of some classes with a few photos each, drawn five times: means with 95 % intervals
(Student's t).
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags

from benchmarks import photos
from benchmarks.photos import METRICS, interval, measured
from tfrank.data.transforms import FITS
from tfrank.evaluation.postprocessing.neighbor_whitening import learn_neighbor_whitening
from tfrank.evaluation.postprocessing.whitening import whiten
from tfrank.export.saved_model import saved_model_of
from tfrank.search import building
from tfrank.search.adaptation import adapt
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.index import open_index
from tfrank.search.start import FIT, export_start

flags.set_default(photos._FOLDER, "runs/adapt")
_MODEL = flags.DEFINE_string("model", "", "Folder of a run. Default: EfficientNet-Lite0.")
_FIT = flags.DEFINE_enum("fit", FIT, list(FITS), "What EfficientNet-Lite0 sees.")
# Classes and photos of each.
SMALL = ((40, 3), (20, 10), (40, 10))
DRAWS = 5


def drawn(labels: np.ndarray, classes: int, images: int, seed: int) -> np.ndarray:
    """Rows of so many images of so many classes."""
    draw = np.random.default_rng(seed)
    some = draw.permutation(np.unique(labels))[:classes]
    return np.concatenate([draw.permutation(np.flatnonzero(labels == one))[:images] for one in some])


def show(name: str, before: np.ndarray, after: np.ndarray) -> None:
    """Prints the metrics of draws, `[draws, 2]`, by the model as it is and adapted."""
    cells = [interval(column) for column in (*before.T, *after.T, *(after - before).T)]
    print(f"{name:34}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def main(_):
    titles = [f"{title} {when}" for when in ("", "adapted", "gain") for title in METRICS.values()]
    print(f"{'':34}" + "".join(f"{title:>16}" for title in titles))
    for name in photos._SETS.value:
        source = os.path.join(photos.divided(name), "test")
        with tempfile.TemporaryDirectory() as place:
            model, folder = os.path.join(place, "start"), os.path.join(place, "index")
            if _MODEL.value:
                model = saved_model_of(_MODEL.value)
            else:
                export_start(model, fit=_FIT.value)
            building.update(folder, Embedder(model), listed_images(source), root=source, quiet=True)
            before = open_index(folder)
            adapt(folder, asked=True)
            after = open_index(folder)
            rows, labels = before.embeddings, np.unique(before.labels, return_inverse=True)[1]
            show(
                f"{name}, {len(rows):,} photos",
                *(np.array([[*measured(one.embeddings, labels).values()]]) for one in (before, after)),
            )
        for classes, images in SMALL:
            pairs = []
            for seed in range(DRAWS):
                some = drawn(labels, classes, images, seed)
                learnt = learn_neighbor_whitening(rows[some])
                both = rows[some], whiten(rows[some], learnt)
                pairs.append([[*measured(one, labels[some]).values()] for one in both])
            show(f"  {images} of {classes} classes", *np.array(pairs).transpose(1, 0, 2))


if __name__ == "__main__":
    app.run(main)
