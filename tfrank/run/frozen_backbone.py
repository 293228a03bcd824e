"""Training of a head alone: the features of the frozen backbone are computed once and stored."""

import hashlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfrank.common.checks import InputError
from tfrank.data import pipeline, records
from tfrank.data.index import RecordIndex
from tfrank.evaluation.embed import embed, embed_into
from tfrank.run.datasets import build_loader, build_sampler


def check_frozen(config: ConfigDict) -> None:
    """Raises InputError if a setting is incompatible with a frozen backbone."""
    if not config.train.frozen_backbone:
        return
    if config.model.head != "pca":
        raise InputError(
            "config.train.frozen_backbone trains a head without bias. Set config.model.head=pca; received"
            f" {config.model.head!r}."
        )
    if config.model.weights == "random":
        raise InputError(
            "config.train.frozen_backbone keeps the backbone as it is. Give it pretrained weights,"
            " --config.model.weights=PATH or imagenet."
        )
    if config.train.strategy == "multi_worker":
        raise InputError("config.train.frozen_backbone trains on one machine. Set config.train.strategy.")
    if config.dry_run:
        raise InputError("config.dry_run cannot be combined with config.train.frozen_backbone.")


def store_features(
    config: ConfigDict,
    function: Callable[[tf.Tensor], tf.Tensor],
    index: RecordIndex,
    folder: str,
    *,
    views: int,
    weights: str,
) -> np.ndarray:
    """Computes the unit-norm features of all images of an index and stores them; resumes if interrupted.

    Args:
        config: config of the run.
        function: computes features of images.
        index: the records.
        folder: folder of the stored features.
        views: number of transforms of each image: the test transform, then random training augmentations.
        weights: fingerprint of the backbone's weights.

    Returns:
        `[views, images, features]` float32, memory-mapped.
    """
    loader = build_loader(config)
    what = repr((weights, index.fingerprint(), loader, config.seed, views))
    ids = np.tile(index.id, views)

    def batches_from(start):
        with records.RecordReader(index) as reader:
            batches = pipeline.augmented_passes(
                reader,
                loader,
                passes=views,
                seed=config.seed,
                batch_size=config.evaluation.batch_size,
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
    config: ConfigDict, features: np.ndarray, index: RecordIndex, stop: int
) -> Callable[..., tf.data.Dataset]:
    """Returns `batches(step, context)` as `datasets.build_batches` does, but of stored features.

    Batch t has the same images as there. The augmentation of each is drawn by (seed, t).
    """
    sampler = build_sampler(config, index)

    def batch(step):
        numbers = sampler.batch(int(step))
        views = np.random.default_rng([config.seed, int(step)]).integers(len(features), size=len(numbers))
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
    config: ConfigDict, head: keras.Model, features: np.ndarray, index: RecordIndex
) -> tuple[np.ndarray, np.ndarray]:
    """Computes unit-norm embeddings of images from the stored features of their test transform.

    Returns:
        The embeddings and the labels.
    """
    size = config.evaluation.batch_size
    parts = (
        {"image": features[0, first : first + size], "label": index.label[first : first + size]}
        for first in range(0, len(index), size)
    )
    return embed(lambda rows: head(rows, training=False), parts)
