"""A SavedModel that opens with plain TensorFlow, in a process that has no tfrank."""

import os
import shutil
from collections.abc import Callable

import keras
import tensorflow as tf

from tfrank import files
from tfrank.normalize import l2_normalize


def export_saved_model(
    model: keras.Model,
    folder: str,
    decode: Callable[[tf.Tensor], tf.Tensor],
    transform: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> None:
    """Writes the model with two signatures, both giving `{"embedding": [batch, dim]}` of unit norm.

    `serving_default` takes `images`, `[batch, height, width, 3]` float32 RGB 0-255 of the model's size.
    `encoded` takes `bytes`, `[batch]` strings, each an image file of any size.

    Args:
        model: from images to embeddings.
        folder: the SavedModel's; one that is there is replaced once the new one is whole.
        decode: from one image's bytes to `[height, width, 3]` of the model's size, 0-255, as in evaluation.
            Where the model takes any size, images are embedded one by one.
        transform: what is done to embeddings last, such as whitening: from `[batch, dim]` float32 of unit
            norm to `[batch, out]` of unit norm, in TensorFlow. What it holds becomes constants.
    """
    height, width, channels = model.input_shape[1:]
    image = tf.TensorSpec([height, width, channels], tf.float32)

    def embed(images):
        return l2_normalize(tf.cast(model(images, training=False), tf.float32))

    def embed_one(encoded):
        return embed(tf.cast(decode(encoded), tf.float32)[None])[0]

    def embed_encoded(encoded):
        if height is None:
            embedding = tf.TensorSpec(model.output_shape[1:], tf.float32)
            return tf.map_fn(embed_one, encoded, fn_output_signature=embedding)
        return embed(
            tf.map_fn(lambda one: tf.cast(decode(one), tf.float32), encoded, fn_output_signature=image)
        )

    def served(embeddings):
        return {"embedding": transform(embeddings) if transform else embeddings}

    archive = keras.export.ExportArchive()
    archive.track(model)
    images = tf.TensorSpec([None, height, width, channels], tf.float32, name="images")
    archive.add_endpoint("serving_default", lambda images: served(embed(images)), input_signature=[images])
    archive.add_endpoint(
        "encoded",
        lambda encoded: served(embed_encoded(encoded)),
        input_signature=[tf.TensorSpec([None], tf.string, name="bytes")],
    )
    folder = folder.rstrip("/")
    temporary = f"{folder}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with files.naming(temporary):
            archive.write_out(temporary, verbose=False)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(temporary, folder)
