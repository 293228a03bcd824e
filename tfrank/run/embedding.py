"""Embeds the images of an index by a model, or by the baseline that needs none."""

import contextlib
import hashlib
from collections.abc import Callable, Generator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import devices
from tfrank.common.tensorflow_log import without_tracing_warning
from tfrank.configs.sections import Data, Evaluation, Model
from tfrank.data import pipeline, records
from tfrank.data.index import RecordIndex
from tfrank.evaluation.embed import embed
from tfrank.models.embedding import resolve_options
from tfrank.models.preprocessing import preprocess
from tfrank.run.datasets import build_test_loader

RAW_SIDE = 64
# Images embedded at once if a config does not say; on a CPU, of at most so many pixels together.
MOST_AT_ONCE, PIXELS_AT_ONCE = 256, 2**20


def embed_fn(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from images to embeddings, in inference mode, compiled once for any batch size."""
    images = tf.TensorSpec(model.input_shape, tf.float32)
    return without_tracing_warning(
        tf.function(lambda batch: model(batch, training=False), input_signature=[images], autograph=False)
    )


def fingerprint_of_weights(model: keras.Model) -> str:
    """Returns a SHA-256 of the weights, as hexadecimal text."""
    digest = hashlib.sha256()
    for variable in model.variables:
        digest.update(np.ascontiguousarray(variable.value.numpy()).data)
    return digest.hexdigest()


def raw_input(model: Model, image_size: int) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns the baseline embedding, by its name: the input itself.

    That is a vector, or a preprocessed image of at most `RAW_SIDE` pixels a side.
    """
    if model.takes_vectors:
        return {"vectors": tf.identity}
    mode = resolve_options(backbone=model.backbone, preprocessing=model.preprocessing)["preprocessing"]
    side = min(image_size, RAW_SIDE)

    def embed(batch):
        small = tf.image.resize(batch, [side, side], antialias=True) if side < batch.shape[1] else batch
        return tf.reshape(preprocess(small, mode), [len(batch), -1])

    return {"raw pixels": embed}


def images_at_once(data: Data, evaluation: Evaluation) -> int:
    """Returns how many images are embedded at once: `evaluation.batch_size`, or what suits the machine if 0.

    Feature maps of more images than have a million pixels do not fit into the caches of a CPU.

    >>> images_at_once(Data(), Evaluation(batch_size=5)), images_at_once(Data(image_size=32), Evaluation())
    (5, 256)
    """
    side = evaluation.image_size or data.image_size
    fitting = MOST_AT_ONCE if devices.gpu() else PIXELS_AT_ONCE // side**2
    return evaluation.batch_size or min(max(fitting, 1), MOST_AT_ONCE)


def embed_all(
    data: Data,
    evaluation: Evaluation,
    function: Callable[[tf.Tensor], tf.Tensor],
    index: RecordIndex,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit-norm embeddings and labels of all records of an index."""
    with contextlib.closing(image_batches(data, evaluation, index)) as batches:
        return embed(function, batches, total=len(index), ids=index.id)


def image_batches(
    data: Data, evaluation: Evaluation, index: RecordIndex
) -> Generator[dict[str, Any], None, None]:
    """Yields batches of all images of an index, as the model sees them. Errors name the bad image."""
    loader = build_test_loader(data, evaluation)
    size = images_at_once(data, evaluation)
    with records.RecordReader(index) as reader:
        batches = pipeline.evaluation_batches(reader, loader, batch_size=size)
        yield from pipeline.naming_bad_images(reader, batches, loader)
