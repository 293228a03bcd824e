"""Adapts the model of an index to the images in it, without labels: neighbours say what is to count less.

The whitening that `neighbor_whitening` learns becomes the last layer of the model. It maps the embeddings
that the index has, so that no image is embedded again. A SavedModel that states `adapts`, such as that of
`start`, is adapted as soon as an index has enough images; any other if it is asked for.
"""

import os
import tempfile
from collections.abc import Callable

import numpy as np

from tfrank.common.spread import spread
from tfrank.evaluation.embedding_maps import map_of_whitening
from tfrank.evaluation.postprocessing.neighbor_whitening import MOST, TRAINED, learn_neighbor_whitening
from tfrank.evaluation.postprocessing.whitening import save_whitening, whitening_layer
from tfrank.export import joined
from tfrank.export.saved_model import exported_contents
from tfrank.search.embedder import Embedder
from tfrank.search.index import DUPLICATE
from tfrank.search.index_folder import IndexFolder
from tfrank.search.upgrading import map_rows

# In the folder of the model that `start` became: what adapted it.
WHITENING = "whitening.npz"
# Embeddings that are moved to find out which cosine that is after an adaptation.
MOVED = 1000
# Fewer images say too little: among 50, neighbours are often of other kinds.
FEWEST = 100


def adapt(folder: str, *, asked: bool = False, trusted: bool = False, target_recall: float = 0.99) -> None:
    """Adapts the model of an index to its images, if it is to be and has not been; prints so.

    Args:
        folder: the index folder.
        asked: whether to adapt a model that says nothing of it.
        trusted: whether the model may run any operation.
        target_recall: recall that an approximate search structure is built to.

    Raises:
        InputError: there is no index, it is damaged, or another process writes.
    """
    index = IndexFolder(folder)
    version = index.existing()
    model = index.path("models", version.model)
    states = exported_contents(model).get("adapts")
    # Who went back to the model as it is keeps it.
    is_due = (states and not version.before) or (asked and states is not False)
    if not is_due:
        return
    if version.rows < FEWEST:
        if asked:
            print(f"The model was not adapted: that takes {FEWEST} images.", flush=True)
        return
    options = {} if states else TRAINED
    contents = index.read(version, ["id"], embeddings=False)
    rows = index.vectors(contents, spread(version.rows, MOST))
    whitening = learn_neighbor_whitening(rows, **options)
    mapping = map_of_whitening(whitening)
    near_copy = near_copy_after(rows, mapping)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "model")
        joined.adapted(model, whitening_layer(whitening), path, near_copy=near_copy, trusted=trusted)
        embedder = Embedder(path, trusted=trusted)
        if states:
            save_whitening(os.path.join(path, WHITENING), whitening)
        mapping = mapping._replace(models=np.array([version.model, embedder.fingerprint]))
        map_rows(folder, embedder, mapping, marked=False, target_recall=target_recall)
    print("The model was adapted to them: what differs between neighbours counts for less.", flush=True)


def near_copy_after(rows: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> float:
    """Returns which cosine images have after a change of embeddings that had `DUPLICATE` before.

    It is the median of images whose copies differ in a random direction, as recompressed and slightly cropped
    ones nearly do.

    Args:
        rows: `[images, dim]` embeddings of unit norm.
        change: maps embeddings to others of unit norm.

    >>> near_copy_after(np.eye(64, dtype=np.float32), lambda rows: rows)
    0.97
    """
    rows = rows[spread(len(rows), MOVED)]
    aside = np.random.default_rng(0).normal(size=rows.shape)
    aside -= np.sum(aside * rows, axis=1, keepdims=True) * rows
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    moved = DUPLICATE * rows + np.sqrt(1 - DUPLICATE**2) * aside
    return round(float(np.median(np.sum(change(rows) * change(moved.astype(np.float32)), axis=1))), 3)
