"""The embeddings that a model gave before an index adapted it, by which near copies are told.

What neighbours differ in counts for little in an adapted model, and this is all that copies differ in: of
photos, copies and look-alikes have the same similarities there.
"""

import os
from collections.abc import Callable

import numpy as np

from tfrank.evaluation.postprocessing.whitening import Whitening, inverse, load_whitening, save_whitening

# In the folder of a model: how its embeddings come from those that it gave before.
FILE = "from_original.npz"


def save(model: str, whitening: Whitening) -> None:
    """Writes how the embeddings of a model come from its original ones into its folder."""
    save_whitening(os.path.join(model, FILE), whitening)


def originals(model: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """Returns the function from embeddings of a model, `[images, dim]`, to the original ones.

    None: the model was not adapted, so these are the original ones.
    """
    path = os.path.join(model, FILE)
    return inverse(load_whitening(path)) if os.path.exists(path) else None
