"""The weights that a run begins with: those of the backbone, and of a head that is computed from features."""

import types
from collections.abc import Mapping

import keras
import numpy as np

from tfrank.common import checks
from tfrank.configs.default import Config
from tfrank.data.index import RecordIndex, select
from tfrank.models.embedding import (
    COMPUTED_HEADS,
    HEAD_LAYER,
    initialize_head_with_pca,
    split_at_head,
    teach_head,
    whiten_head,
)
from tfrank.models.weights import load_backbone_weights
from tfrank.run import frozen_backbone
from tfrank.run.embedding import embed_all, embed_fn

# Most images whose features a head begins with, or that it is turned by, drawn at random.
PCA_IMAGES = 5000


def load_start(
    config: Config,
    model: keras.Model,
    images: RecordIndex,
    workdir: str,
    stored: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> None:
    """Loads the initial weights of training into a model.

    Args:
        config: the config of the run.
        model: the embedding model.
        images: the training images, whose features the head begins with.
        workdir: folder of the run.
        stored: embeddings of the images by other models, see `other_models`. A computed head is that of least
            squares to the teacher, where the run learns its embeddings. The head is turned to the model that
            the run is to be compatible with.
    """
    teacher = stored["teacher"] if config.train.learns_teachers_space else None
    _load_start(config, model, images, workdir, teacher)
    if config.train.compatible_with:
        turn_head(config, model, images, stored["compatible_with"])


def _load_start(config, model, images, workdir, teacher):
    with checks.as_fields("model", ["weights", "backbone"]):
        load_backbone_weights(model, config.model.weights)
    head = config.model.head
    if head == "whitened" and config.train.is_partly_frozen:
        print(sentence_on_head(teacher, len(images)), flush=True)
        frozen_backbone.fit_head(config, model, workdir, images, teacher)
        return
    if head not in COMPUTED_HEADS:
        return
    rows = _drawn(config, images)
    if teacher is not None or head == "whitened":
        print(sentence_on_head(teacher, len(rows)), flush=True)
    else:
        print(f"The head begins as the PCA of the features of {len(rows):,} training images.", flush=True)
    function = embed_fn(split_at_head(model)[0])
    features, labels = _embedded(config, function, select(images, rows))
    if teacher is not None:
        teach_head(model, features, teacher[rows])
    elif head == "pca":
        initialize_head_with_pca(model, features)
    else:
        whiten_head(model, features, labels)


def sentence_on_head(teacher: np.ndarray | None, images: int, features: str = "features") -> str:
    """Says what a head is computed from: features of so many images, and a teacher if there is one."""
    does = "whitens" if teacher is None else "maps to the teacher's embeddings, by least squares,"
    return f"The head {does} the {features} of {images:,} training images."


def turn_head(config: Config, model: keras.Model, images: RecordIndex, old: np.ndarray) -> None:
    """Turns the embeddings of a model so that they are as near as can be to those of an older model.

    No angle between embeddings changes (Procrustes). Without a head nothing can be turned.

    Args:
        config: the config of the run.
        model: the embedding model.
        images: the training images.
        old: `[images, dim]` their embeddings by the older model.
    """
    if config.model.head == "none":
        return
    rows = _drawn(config, images)
    print(f"The head is turned to the older model by {len(rows):,} training images.", flush=True)
    new, _ = _embedded(config, embed_fn(model), select(images, rows))
    left, _, right = np.linalg.svd(new.T @ old[rows])
    for variable in model.get_layer(HEAD_LAYER).variables:
        variable.assign(variable.numpy() @ (left @ right))


def _embedded(config, function, images):
    """The embeddings and labels of images at the size of training."""
    return embed_all(config.data, config.evaluation.at_training_size(), function, images)


def _drawn(config, images):
    """The numbers of at most `PCA_IMAGES` images, ascending."""
    return np.sort(np.random.default_rng(config.seed).permutation(len(images))[:PCA_IMAGES])
