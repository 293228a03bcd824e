"""Adapts the model of an index to the images in it, without labels: neighbours say what is to count less.

The whitening that `neighbor_whitening` learns becomes the last layer of the model. It maps the embeddings
that the index has, so that no image is embedded again. A SavedModel that states `adapts`, such as that of
`start`, is adapted as soon as an index has enough images; any other if it is asked for.
"""

import os
import tempfile

import numpy as np

from tfrank.common.spread import spread
from tfrank.evaluation.embedding_maps import map_of_whitening
from tfrank.evaluation.postprocessing.neighbor_whitening import MOST, learn_neighbor_whitening
from tfrank.evaluation.postprocessing.whitening import save_whitening, whitening_layer
from tfrank.export import joined
from tfrank.export.saved_model import exported_contents
from tfrank.search import originals
from tfrank.search.embedder import Embedder
from tfrank.search.index_folder import IndexFolder, Version
from tfrank.search.upgrading import map_rows

# In the folder of the model that `start` became: what adapted it.
WHITENING = "whitening.npz"
# Of 24 to 50 images mAP gains as much, but Recall@1 not on each set (docs/image_search.md).
FEWEST = 50


def adapt(
    folder: str, *, asked: bool = False, trusted: bool = False, target_recall: float | None = None
) -> None:
    """Adapts the model of an index to its images, if it is to be and has not been; prints so.

    Args:
        folder: the index folder.
        asked: whether to adapt a model that says nothing of it.
        trusted: whether the model may run any operation.
        target_recall: recall that an approximate search is built to. None: as before, at first 0.99.

    Raises:
        InputError: there is no index, it is damaged, or another process writes.
    """
    index = IndexFolder(folder)
    version = index.existing()
    model = index.path("models", version.model)
    states = exported_contents(model).get("adapts")
    is_due = (states and not version.before) or (asked and states is not False)
    if not is_due or _went_back(index, version):
        return
    if version.rows < FEWEST:
        if asked:
            print(f"The model was not adapted: that takes {FEWEST} images.", flush=True)
        return
    contents = index.read(version, ["id"], embeddings=False)
    rows = index.vectors(contents, spread(version.rows, MOST))
    whitening = learn_neighbor_whitening(rows)
    mapping = map_of_whitening(whitening)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "model")
        joined.adapted(model, whitening_layer(whitening), path, trusted=trusted)
        embedder = Embedder(path, trusted=trusted)
        if states:
            save_whitening(os.path.join(path, WHITENING), whitening)
        originals.save(path, whitening)
        mapping = mapping._replace(models=np.array([version.model, embedder.fingerprint]))
        map_rows(folder, embedder, mapping, marked=False, target_recall=target_recall)
    print("The model was adapted to them: what differs between neighbours counts for less.", flush=True)


def _went_back(index: IndexFolder, version: Version) -> bool:
    """Returns whether somebody went back from the adapted model to the one as it is, and so keeps that."""
    before = version.before and index.path("models", version.before)
    return bool(before) and os.path.isdir(before) and joined.origin_of(before) == version.model
