"""Training of a head alone: the features of the frozen backbone are computed once and stored."""

import functools
import hashlib
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.configs import sections
from tfrank.configs.default import Config
from tfrank.configs.sections import Model, Train
from tfrank.data import pipeline, records
from tfrank.data.images import ImageLoader
from tfrank.data.index import RecordIndex
from tfrank.data.vectors import VectorLoader
from tfrank.evaluation.embed import embed, embed_into
from tfrank.models.embedding import split_at_head
from tfrank.run.datasets import Data, build_loader, build_sampler
from tfrank.run.embedding import embed_fn, fingerprint_of_weights


def check_frozen(train: Train, model: Model, *, dry_run: bool) -> None:
    """Raises InputError if a setting is incompatible with a frozen backbone."""
    if not train.frozen_backbone:
        return
    if model.head != "pca":
        raise InputError(
            "config.train.frozen_backbone trains a head without bias. Set config.model.head=pca; received"
            f" {model.head!r}."
        )
    if model.weights == "random":
        raise InputError(
            "config.train.frozen_backbone keeps the backbone as it is. Give it pretrained weights,"
            " --config.model.weights=PATH or imagenet."
        )
    if train.strategy == "multi_worker":
        raise InputError("config.train.frozen_backbone trains on one machine. Set config.train.strategy.")
    if dry_run:
        raise InputError("config.dry_run cannot be combined with config.train.frozen_backbone.")


def build_inputs(config: Config, model: keras.Model, workdir: str, data: Data, steps: int):
    """Returns `batches` and `explain` as `datasets.build_batches` does, and what embeds the validation part.

    They read stored features, so no record can be bad. Without a validation part the last is None.

    Args:
        config: the config of the run.
        model: the embedding model. Its backbone computes the features, and its head embeds them.
        workdir: folder of the run.
        data: the records of the run.
        steps: the steps of the run.
    """
    backbone, head = split_at_head(model)
    function, weights = embed_fn(backbone), fingerprint_of_weights(backbone)
    loader = build_loader(config.data, full_size=config.evaluation.full_size)
    drawn, size = {"seed": config.seed}, {"batch_size": config.evaluation.batch_size}

    def store(index, part, views):
        folder = os.path.join(workdir, "features", part)
        return store_features(loader, function, index, folder, views=views, weights=weights, **drawn, **size)

    train = store(data.train, "train", config.train.feature_views)
    batches = feature_batches(config.data, train, data.train, steps, **drawn)
    if data.validation is None:
        return batches, lambda step: None, None
    held_out = store(data.validation, "validation", 1)
    embed = functools.partial(embed_features, head, held_out, data.validation, **size)
    return batches, lambda step: None, embed


def store_features(
    loader: ImageLoader | VectorLoader,
    function: Callable[[tf.Tensor], tf.Tensor],
    index: RecordIndex,
    folder: str,
    *,
    views: int,
    seed: int,
    batch_size: int,
    weights: str,
) -> np.ndarray:
    """Computes the unit-norm features of all images of an index and stores them; resumes if interrupted.

    Args:
        loader: loads the images.
        function: computes features of images.
        index: the records.
        folder: folder of the stored features.
        views: number of transforms of each image: the test transform, then random training augmentations.
        seed: seed of the augmentations.
        batch_size: images embedded at once.
        weights: fingerprint of the backbone's weights.

    Returns:
        `[views, images, features]` float32, memory-mapped.
    """
    what = repr((weights, index.fingerprint(), loader, seed, views))
    ids = np.tile(index.id, views)

    def batches_from(start):
        with records.RecordReader(index) as reader:
            batches = pipeline.augmented_passes(
                reader,
                loader,
                passes=views,
                seed=seed,
                batch_size=batch_size,
                start=start,
            )
            try:
                yield from batches
            except tf.errors.OpError:
                pipeline.check_batch(reader, np.arange(len(index)), loader)
                raise

    key = hashlib.sha256(what.encode()).hexdigest()
    rows = embed_into(folder, function, batches_from, ids=ids, labels=np.tile(index.label, views), key=key)
    return rows.reshape(views, len(index), -1)


def feature_batches(
    data: sections.Data, features: np.ndarray, index: RecordIndex, stop: int, *, seed: int
) -> Callable[..., tf.data.Dataset]:
    """Returns `batches(step, context)` as `datasets.build_batches` does, but of stored features.

    Batch t has the same images as there. The augmentation of each is drawn by (seed, t).
    """
    sampler = build_sampler(data, index, seed=seed)

    def batch(step):
        numbers = sampler.batch(int(step))
        views = np.random.default_rng([seed, int(step)]).integers(len(features), size=len(numbers))
        return features[views, numbers], index.label[numbers].astype(np.int64)

    @tf.autograph.experimental.do_not_convert
    def read(step):
        rows, labels = tf.numpy_function(batch, [step], [tf.float32, tf.int64], stateful=False)
        shape = [sampler.batch_size]
        return {
            "image": tf.ensure_shape(rows, [*shape, features.shape[-1]]),
            "label": tf.ensure_shape(labels, shape),
        }

    def batches(start, context=None):
        replicas = context.num_replicas_in_sync if context else 1
        whole = tf.data.Dataset.range(start, stop).map(read, num_parallel_calls=2, deterministic=True)
        shares = whole.rebatch(sampler.batch_size // replicas, drop_remainder=True) if replicas > 1 else whole
        return shares.prefetch(2)

    return batches


def embed_features(
    head: keras.Model, features: np.ndarray, index: RecordIndex, *, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes unit-norm embeddings of images from the stored features of their test transform.

    Returns:
        The embeddings and the labels.
    """
    parts = (
        {"image": features[0, first : first + batch_size], "label": index.label[first : first + batch_size]}
        for first in range(0, len(index), batch_size)
    )
    return embed(lambda rows: head(rows, training=False), parts)
