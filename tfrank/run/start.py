"""The weights that a run begins with: those of the backbone, and of a head that is computed from features."""

import keras
import numpy as np

from tfrank.common import checks
from tfrank.configs.default import Config
from tfrank.data.index import RecordIndex, select
from tfrank.models.embedding import COMPUTED_HEADS, initialize_head_with_pca, split_at_head, whiten_head
from tfrank.models.weights import load_backbone_weights
from tfrank.run import frozen_backbone
from tfrank.run.embedding import embed_all, embed_fn

# Most images whose features a head begins with, drawn at random.
PCA_IMAGES = 5000


def load_start(config: Config, model: keras.Model, images: RecordIndex, workdir: str) -> None:
    """Loads the initial weights of training into a model.

    Args:
        config: the config of the run.
        model: the embedding model.
        images: the training images, whose features the head begins with.
        workdir: folder of the run.
    """
    with checks.as_fields("model", ["weights", "backbone"]):
        load_backbone_weights(model, config.model.weights)
    head = config.model.head
    if head == "whitened" and config.train.is_partly_frozen:
        print(f"The head whitens the features of {len(images):,} training images.", flush=True)
        frozen_backbone.fit_head(config, model, workdir, images)
        return
    if head not in COMPUTED_HEADS:
        return
    rows = np.sort(np.random.default_rng(config.seed).permutation(len(images))[:PCA_IMAGES])
    begins = "begins as the PCA of" if head == "pca" else "begins by whitening"
    print(f"The head {begins} the features of {len(rows):,} training images.", flush=True)
    function = embed_fn(split_at_head(model)[0])
    features, labels = embed_all(config.data, config.evaluation, function, select(images, rows))
    if head == "pca":
        initialize_head_with_pca(model, features)
    else:
        whiten_head(model, features, labels)
