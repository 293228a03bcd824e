"""The composition root of the fast road: a head trained on features of a frozen backbone, computed once."""

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
    """InputError for what does not go with a frozen backbone."""
    if not config.train.frozen_backbone:
        return
    if config.model.head != "pca":
        raise InputError(
            "config.train.frozen_backbone trains a head without offset. Set config.model.head=pca; received"
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
        raise InputError("A dry run does not go with config.train.frozen_backbone, which embeds all images.")


def store_features(
    config: ConfigDict,
    function: Callable[[tf.Tensor], tf.Tensor],
    index: RecordIndex,
    folder: str,
    *,
    views: int,
    weights: str,
) -> np.ndarray:
    """Unit-norm features of all images of an index, in a folder, where a pass that was stopped goes on.

    Args:
        config: of the run.
        function: from images to features.
        index: the records.
        folder: where to.
        views: of each image: the one at test, then random ones as in training.
        weights: fingerprint of the backbone's.

    Returns:
        `[views, images, features]` float32, mapped from the file.
    """
    loader = build_loader(config)
    what = repr((weights, index.fingerprint(), loader, config.seed, views))
    ids = np.tile(index.id, views)

    def batches_from(start):
        with records.RecordReader(index) as reader:
            batches = pipeline.view_batches(
                reader,
                loader,
                views=views,
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
    """The batches of a run until step `stop`, as `datasets.build_batches` gives them, of stored features.

    Batch t has the images that it has otherwise; the view of each is drawn by (seed, t).
    """
    sampler = build_sampler(config, index)

    def batch(step):
        numbers = sampler.batch(int(step))
        views = np.random.default_rng([config.seed, int(step)]).integers(len(features), size=len(numbers))
        return features[views, numbers], index.label[numbers].astype(np.int64)

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
    """Unit-norm embeddings and labels of images, from the stored features of their test view."""
    size = config.evaluation.batch_size
    parts = (
        {"image": features[0, first : first + size], "label": index.label[first : first + size]}
        for first in range(0, len(index), size)
    )
    return embed(lambda rows: head(rows, training=False), parts)
