"""Export to a SavedModel that plain TensorFlow can load without tfrank."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.export.operations import check_operations

# File in a SavedModel that states the whitening, scales and mirror images that it applies, and what it
# promises of matches. Of a model of an index: whether it is to be adapted, see `tfrank.search.adaptation`,
# the model that it was made of, and the classes that this one was trained on.
CONTENTS = "tfrank.json"
_STATED = json_files.record(
    {},
    {
        "whitening": json_files.real(0, 10),
        "scales": json_files.list_of(json_files.real(0.01, 100), at_least=1),
        "mirror": json_files.flag(),
        "adapts": json_files.flag(),
        "origin": json_files.text(r"[0-9a-f]{16}"),
        "trained": json_files.list_of(json_files.text("[0-9a-f]{16}")),
        "matches": json_files.none_or(
            json_files.record(
                {}, {"dims": json_files.dict_of(json_files.dict_of(json_files.anything))}, others=True
            )
        ),
    },
    others=True,
)
# The signature that embeds images, or vectors.
SIGNATURE = "serving_default"


def exported_contents(saved_model: str) -> dict[str, Any]:
    """Reads what `CONTENTS` of a SavedModel states; {} if there is none.

    Raises:
        InputError: the file that states them is damaged.
    """
    try:
        return json_files.read(os.path.join(saved_model, CONTENTS), _STATED, "Export it again.")
    except FileNotFoundError:
        return {}


def trained_classes(contents: Mapping[str, Any]) -> list[str]:
    """Returns the fingerprints of the classes that a model was trained on, by what it states.

    A model that was made of another keeps them where it states no matches.

    >>> trained_classes({"matches": {"trained": ["287782ef42356ef3"]}})
    ['287782ef42356ef3']
    """
    matches = contents.get("matches") or {}
    return sorted({*contents.get("trained", []), *matches.get("trained", [])})


def class_fingerprint(name: str) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of a class's name, by which a model states its classes.

    >>> class_fingerprint("robin")
    '287782ef42356ef3'
    """
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]


def saved_model_of(path: str) -> str:
    """Returns the SavedModel that a path stands for: itself, or that of a run's folder.

    Raises:
        InputError: there is none.
    """
    for folder in (path, os.path.join(path, "saved_model")):
        if os.path.isfile(os.path.join(folder, "saved_model.pb")):
            return folder
    raise InputError(f"--model has no SavedModel: {path}. Give the folder of a run, or a SavedModel.")


@contextlib.contextmanager
def loading(folder: str, *, trusted: bool = False) -> Iterator[str]:
    """Refuses operations that are not trusted, and names the folder if its SavedModel cannot be loaded.

    Yields the path to load it from, see `files.without_wildcards`.

    Args:
        folder: folder of the SavedModel that is loaded within.
        trusted: whether it may run any operation. If not, a model that could read or write files, contact
            other machines or run Python is refused before it is loaded.

    Raises:
        InputError: the model is refused, or loading it fails.
    """
    try:
        files.check_regular(folder, links=True)
        if not trusted:
            check_operations(folder)
        with files.without_wildcards(folder) as path:
            yield path
    except InputError:
        raise
    except (OSError, KeyError, IndexError, ValueError, TypeError, tf.errors.OpError) as error:
        reason = checks.reason(error).rstrip(".")
        raise InputError(
            f"{folder} is not a SavedModel of an embedding model ({reason}). Give the folder of one, or"
            " export it again."
        ) from None


def export_saved_model(
    model: keras.Model,
    folder: str,
    decode: Callable[[tf.Tensor], tf.Tensor] | None,
    function: Callable[[tf.Tensor], tf.Tensor] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Writes the model with two signatures that return `{"embedding": [batch, out]}`, L2-normalised float32.

    `serving_default` takes `images`, `[batch, height, width, 3]` float32 RGB 0-255 of the model's size.
    `encoded` takes `bytes`, `[batch]` strings, each an image file of any size. A JPEG is turned upright if
    `decode` does so in TensorFlow, as `data.images.ImageLoader.serve` does by its EXIF orientation.

    A model of vectors has `serving_default` alone; it takes `vectors`, `[batch, dim]` float32.

    Args:
        model: the model from images to embeddings.
        folder: the folder of the SavedModel. An existing one, or a link to one, is replaced once the new one
            is complete.
        decode: maps one image's bytes to `[height, width, 3]` of the model's size, 0-255, as in evaluation.
            If the model takes any size, images are embedded one by one. None for a model of vectors.
        function: what to serve if it is more than the model, such as the model at several scales or with
            whitening. Maps images as for `serving_default` to `[batch, out]` embeddings of any norm, in
            TensorFlow. Its variables are the model's; anything else it holds becomes constants. None: the
            model.
        texts: text files to write into the folder, by name.
    """
    images = tf.TensorSpec(model.input_shape, tf.float32, name="images" if decode else "vectors")
    embed = _normalized(function or (lambda images: model(images, training=False)), images)

    def embed_one(encoded):
        return embed(tf.cast(decode(encoded), tf.float32)[None])[0]

    def embed_encoded(encoded):
        if None in images.shape[1:]:
            embedding = tf.TensorSpec(embed.output_shapes[1:], tf.float32)
            return tf.map_fn(embed_one, encoded, fn_output_signature=embedding)
        image = tf.TensorSpec(images.shape[1:], tf.float32)
        return embed(
            tf.map_fn(lambda one: tf.cast(decode(one), tf.float32), encoded, fn_output_signature=image)
        )

    signatures = {SIGNATURE: _signature(embed, images)}
    if decode:
        signatures["encoded"] = _signature(embed_encoded, tf.TensorSpec([None], tf.string, name="bytes"))
    # The variables alone: with every layer, as Keras' archive has it, writing takes twice as long.
    module = tf.Module()
    module.model_variables = [variable.value for variable in model.variables]
    with files.atomic_folder(folder) as temporary:
        tf.saved_model.save(module, temporary, signatures)
        for name, text in (texts or {}).items():
            with open(os.path.join(temporary, name), "w") as file:
                file.write(text)


def _signature(function, spec):
    """A signature from what the spec describes to embeddings."""
    return tf.function(lambda inputs: {"embedding": function(inputs)}, [spec], autograph=False)


def _normalized(function, images):
    """`function` with its embeddings L2-normalised in float32, traced for images of that spec."""

    # AutoGraph would turn the one-line error message for the user into several lines.
    @tf.function(autograph=False)
    def embed(images):
        return l2_normalize(tf.cast(function(images), tf.float32))

    return embed.get_concrete_function(images)
