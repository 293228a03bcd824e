"""Training of a head, or of the last layers: what the fixed part computes of each image is stored."""

import functools
import hashlib
import os
import types
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.configs import sections
from tfrank.configs.default import Config
from tfrank.configs.sections import Model, Train
from tfrank.data import pipeline, records
from tfrank.data.images import ImageLoader
from tfrank.data.index import RecordIndex
from tfrank.data.vectors import VectorLoader
from tfrank.evaluation.embed import embed, embed_into
from tfrank.models.efficientnet_lite import LAST_STAGES
from tfrank.models.embedding import (
    COMPUTED_HEADS,
    resolve_options,
    split_at_head,
    split_in_backbone,
    teach_head,
    whiten_head,
    without_head,
)
from tfrank.run.datasets import Data, build_loader, build_sampler
from tfrank.run.embedding import embed_fn, fingerprint_of_weights, images_at_once


def check_frozen(train: Train, model: Model, *, dry_run: bool) -> None:
    """Raises InputError if a setting is incompatible with a fixed part of the network."""
    if not train.is_partly_frozen:
        return
    field = "config.train.frozen_until" if train.frozen_until else "config.train.frozen_backbone"
    if train.frozen_until and train.frozen_backbone:
        raise InputError(f"{field} trains more than config.train.frozen_backbone=True. Set one of them.")
    if train.frozen_backbone and model.head not in COMPUTED_HEADS:
        raise InputError(
            f"{field} trains a head that begins as it is computed from features. Set"
            f" config.model.head=whitened or pca; received {model.head!r}."
        )
    if train.frozen_until and (model.backbone in ("convnet", "vectors") or model.levels):
        raise InputError(f"{field} needs a pretrained network with one embedding; received {model.backbone}.")
    known = LAST_STAGES.get(train.frozen_until, {model.backbone})
    if model.backbone not in known:
        raise InputError(
            f"{field}={train.frozen_until} is for {', '.join(known)}. Name a layer of {model.backbone}."
        )
    if model.weights == "random":
        raise InputError(
            f"{field} keeps the backbone as it is. Give it pretrained weights, --config.model.weights=PATH or"
            " imagenet."
        )
    if train.strategy == "multi_worker":
        raise InputError(f"{field} trains on one machine. Set config.train.strategy.")
    if dry_run:
        raise InputError(f"config.dry_run cannot be combined with {field}.")


def split(config: Config, model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Splits the model of a run into the part that stays as it is and the part that is trained."""
    name = config.train.frozen_until
    if not name:
        return split_at_head(model)
    fields = config.model
    options = resolve_options(backbone=fields.backbone, preprocessing=fields.preprocessing)
    layer = LAST_STAGES[name][fields.backbone] if name in LAST_STAGES else name
    with checks.called({"layer": "config.train.frozen_until"}):
        return split_in_backbone(model, layer, preprocessing=options["preprocessing"])


def build_inputs(config: Config, model: keras.Model, workdir: str, data: Data, steps: int):
    """Returns `batches` and `explain` as `datasets.build_batches` does, and what embeds the validation part.

    They read stored features, so no record can be bad. Without a validation part the last is None.

    Args:
        config: the config of the run.
        model: the embedding model. Its fixed part computes the features, and the other embeds them.
        workdir: folder of the run.
        data: the records of the run.
        steps: the steps of the run.
    """
    trained = split(config, model)[1]
    train = stored(config, model, workdir, data.train, "train")
    shape = trained.input_shape[1:]
    batches = feature_batches(
        config.data, train, data.train, steps, seed=config.seed, shape=shape, stored=data.stored
    )
    if data.validation is None:
        return batches, lambda step: None, None
    held_out = stored(config, model, workdir, data.validation, "validation")[0]
    size = _images_at_once(config)
    batches_of = functools.partial(_batches_of, held_out, data.validation.label, shape, size)
    function = embed_fn(trained)
    return batches, lambda step: None, lambda: embed(function, batches_of())


def fit_head(
    config: Config, model: keras.Model, workdir: str, images: RecordIndex, teacher: np.ndarray | None = None
) -> None:
    """Computes the head of a model, "whitened", from the stored features of all views of training images.

    Args:
        config: the config of the run.
        model: the embedding model, whose weights may have been trained behind its fixed part.
        workdir: folder of the run.
        images: the training images.
        teacher: `[images, dim]` the embeddings of a teacher, which the head is to come near to; None: it
            whitens the features within classes.
    """
    pooled = without_head(split(config, model)[1])
    function, shape = embed_fn(pooled), pooled.input_shape[1:]
    size = _images_at_once(config)
    views = stored(config, model, workdir, images, "train")
    rows = [
        embed(function, _batches_of(view, images.label, shape, size), normalized=False)[0] for view in views
    ]
    if teacher is not None:
        teach_head(model, np.concatenate(rows), np.tile(teacher, [len(views), 1]))
    else:
        whiten_head(model, np.concatenate(rows), np.tile(images.label, len(views)))


def stored(config: Config, model: keras.Model, workdir: str, index: RecordIndex, part: str) -> np.ndarray:
    """Returns the stored features of a part of the data, `[views, images, features]`; computes what lacks.

    Of the part "train" there are `feature_views` views, of others only the test transform.
    """
    fixed, _ = split(config, model)
    flat = keras.Model(fixed.input, keras.layers.Reshape([-1])(fixed.output))
    return store_features(
        build_loader(config.data),
        embed_fn(flat),
        index,
        os.path.join(workdir, "features", part),
        views=config.train.feature_views if part == "train" else 1,
        seed=config.seed,
        batch_size=_images_at_once(config),
        weights=fingerprint_of_weights(fixed),
        maps=bool(config.train.frozen_until),
        about=_about(config),
    )


def _about(config: Config) -> tuple[str, ...]:
    """Returns what features depend on besides the weights, the images and how these are loaded."""
    model, train = config.model, config.train
    # Feature maps are pooled after they were stored.
    pooling = "" if train.frozen_until else model.pooling
    return model.backbone, model.preprocessing, pooling, train.frozen_until, train.precision


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
    maps: bool = False,
    about: tuple[str, ...] = (),
) -> np.ndarray:
    """Computes the features of all images of an index and stores them; resumes if interrupted.

    Args:
        loader: loads the images.
        function: computes features of images.
        index: the records.
        folder: folder of the stored features.
        views: number of transforms of each image: the test transform, then random training augmentations.
        seed: seed of the augmentations.
        batch_size: images embedded at once.
        weights: fingerprint of the weights that compute the features.
        maps: whether they are the feature maps of a layer in the network, which are stored as they are, in
            float16, and not the pooled features, of unit norm in float32.
        about: what else the features depend on.

    Returns:
        `[views, images, features]`, memory-mapped.
    """
    what = repr((weights, index.fingerprint(), loader, seed, views, *(["maps"] if maps else []), *about))
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
    rows = embed_into(
        folder,
        function,
        batches_from,
        ids=ids,
        labels=np.tile(index.label, views),
        key=key,
        dtype=np.float16 if maps else np.float32,
        normalized=not maps,
    )
    return rows.reshape(views, len(index), -1)


def feature_batches(
    data: sections.Data,
    features: np.ndarray,
    index: RecordIndex,
    stop: int,
    *,
    seed: int,
    shape: tuple[int, ...],
    stored: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> Callable[..., tf.data.Dataset]:
    """Returns `batches(step, context)` as `datasets.build_batches` does, but of stored features.

    Batch t has the same images as there. The augmentation of each is drawn by (seed, t). An image's features
    have the given shape.
    """
    sampler = build_sampler(data, index, seed=seed)

    def batch(step):
        numbers = sampler.batch(int(step))
        views = np.random.default_rng([seed, int(step)]).integers(len(features), size=len(numbers))
        others = (rows[numbers].astype(np.float32) for rows in stored.values())
        return features[views, numbers].astype(np.float32), index.label[numbers].astype(np.int64), *others

    @tf.autograph.experimental.do_not_convert
    def read(step):
        kinds = [tf.float32, tf.int64, *[tf.float32] * len(stored)]
        rows, labels, *others = tf.numpy_function(batch, [step], kinds, stateful=False)
        columns = {
            name: tf.ensure_shape(part, [sampler.batch_size, whole.shape[1]])
            for (name, whole), part in zip(stored.items(), others)
        }
        return {
            "image": tf.reshape(rows, [sampler.batch_size, *shape]),
            "label": tf.ensure_shape(labels, [sampler.batch_size]),
            **columns,
        }

    def batches(start, context=None):
        replicas = context.num_replicas_in_sync if context else 1
        whole = tf.data.Dataset.range(start, stop).map(read, num_parallel_calls=2, deterministic=True)
        shares = whole.rebatch(sampler.batch_size // replicas, drop_remainder=True) if replicas > 1 else whole
        return shares.prefetch(2)

    return batches


def _images_at_once(config):
    """How many images of the size of training pass through the network together."""
    return images_at_once(config.data, config.evaluation.at_training_size())


def _batches_of(features, labels, shape, batch_size):
    """Yields batches of stored features `[images, features]`, each of which has the given shape."""
    for first in range(0, len(labels), batch_size):
        part = slice(first, first + batch_size)
        yield {"image": features[part].reshape(-1, *shape), "label": labels[part]}
