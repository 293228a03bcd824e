"""A SavedModel that opens with plain TensorFlow, in a process that has no tfrank."""

import os
import shutil
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from tfrank.common import files
from tfrank.common.normalize import l2_normalize


def export_saved_model(
    model: keras.Model,
    folder: str,
    decode: Callable[[tf.Tensor], tf.Tensor],
    function: Callable[[tf.Tensor], tf.Tensor] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Writes the model with two signatures, both giving `{"embedding": [batch, out]}`, L2-normalised float32.

    `serving_default` takes `images`, `[batch, height, width, 3]` float32 RGB 0-255 of the model's size.
    `encoded` takes `bytes`, `[batch]` strings, each an image file of any size; a JPEG is turned upright where
    `decode` does so in TensorFlow, as `data.images.ImageLoader.serve` by its EXIF orientation.

    Args:
        model: from images to embeddings.
        folder: the SavedModel's; one that is there, or a link to one, is replaced once the new one is whole.
        decode: from one image's bytes to `[height, width, 3]` of the model's size, 0-255, as in evaluation.
            Where the model takes any size, images are embedded one by one.
        function: what is served where it is more than the model, such as the model at several scales or
            whitened: from images as `serving_default` takes them to `[batch, out]` embeddings of any norm, in
            TensorFlow. Its variables are the model's; whatever else it holds becomes constants. None: the
            model.
        texts: files to be written beside, by name.
    """
    height, width, channels = model.input_shape[1:]
    images = tf.TensorSpec([None, height, width, channels], tf.float32, name="images")
    embed = _normalized(function or (lambda images: model(images, training=False)), images)

    def embed_one(encoded):
        return embed(tf.cast(decode(encoded), tf.float32)[None])[0]

    def embed_encoded(encoded):
        if height is None:
            embedding = tf.TensorSpec(embed.output_shapes[1:], tf.float32)
            return tf.map_fn(embed_one, encoded, fn_output_signature=embedding)
        image = tf.TensorSpec(images.shape[1:], tf.float32)
        return embed(
            tf.map_fn(lambda one: tf.cast(decode(one), tf.float32), encoded, fn_output_signature=image)
        )

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "serving_default", lambda images: {"embedding": embed(images)}, input_signature=[images]
    )
    archive.add_endpoint(
        "encoded",
        lambda encoded: {"embedding": embed_encoded(encoded)},
        input_signature=[tf.TensorSpec([None], tf.string, name="bytes")],
    )
    folder = folder.rstrip("/")
    temporary = f"{folder}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with files.naming(temporary):
            archive.write_out(temporary, verbose=False)
            for name, text in (texts or {}).items():
                with open(os.path.join(temporary, name), "w") as file:
                    file.write(text)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.remove(folder)
    os.rename(temporary, folder)


def _normalized(function, images):
    """`function` with its embeddings L2-normalised in float32, traced for images of that spec."""

    # AutoGraph would make several lines of the one that a user is told.
    @tf.function(autograph=False)
    def embed(images):
        return l2_normalize(tf.cast(function(images), tf.float32))

    return embed.get_concrete_function(images)
