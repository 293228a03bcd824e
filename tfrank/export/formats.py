"""Other formats of a SavedModel: TensorFlow Lite and ONNX, each checked against the SavedModel."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.export.saved_model import SIGNATURE, loading

# Images that are embedded by both models to compare them.
CHECKED = 64


class NotWritten(InputError):
    """A format that cannot be written of this model, or not here; others may be."""


class Format(NamedTuple):
    """A format of a model.

    Attributes:
        file: name of the file.
        write: converts the SavedModel of a folder to the bytes of the file.
        embed: embeds images, `[batch, height, width, 3]` float32, or vectors, by those bytes.
        least_cosine: least mean cosine between embeddings of the same images by both models.
    """

    file: str
    write: Callable[[str], bytes]
    embed: Callable[[bytes, np.ndarray], np.ndarray]
    least_cosine: float


class Written(NamedTuple):
    """A file that was written, and how near its embeddings are to the SavedModel's.

    Attributes:
        path: of the file.
        megabytes: its size.
        cosine: the mean cosine over the compared images.
        least: the least of these cosines.
    """

    path: str
    megabytes: float
    cosine: float
    least: float


def write(
    saved_model: str, folder: str, name: str, images: np.ndarray | None = None, *, trusted: bool = False
) -> Written:
    """Writes a SavedModel in another format and compares both models on images.

    Args:
        saved_model: folder of a SavedModel as `export_saved_model` writes it.
        folder: folder of the new file.
        name: a key of `FORMATS`.
        images: `[images, height, width, 3]` RGB 0-255, such as the model is made for; None: random ones, on
            which eight bits are less exact than on photos. A model of vectors takes `[images, dim]`.
        trusted: whether the SavedModel may run any operation; see `export.saved_model.loading`.

    Raises:
        InputError: the folder is no such SavedModel; `NotWritten` if a package is missing, or embeddings
            differ more than the format allows. Nothing is written then.
    """
    wanted = FORMATS[checks.one_of("format", name, FORMATS)]
    embed, shape = _embedding(saved_model, trusted)
    random = images is None
    images = np.asarray(random_inputs(CHECKED, shape) if random else images, np.float32)
    encoded = wanted.write(saved_model)
    cosines = np.sum(wanted.embed(encoded, images) * embed(images), axis=1)
    if not cosines.mean() >= wanted.least_cosine:
        advice = "Take a more exact format, such as tflite."
        if random:
            advice = "Compare on photos such as the model is made for: --images=FOLDER."
        raise NotWritten(
            f"{wanted.file} embeds differently: the mean cosine to the SavedModel's embeddings is"
            f" {cosines.mean():.4f} over {len(images)} images, and should be at least"
            f" {wanted.least_cosine}. It is not written. {advice}"
        )
    path = os.path.join(files.make_folder(folder), wanted.file)
    with files.atomic_write(path) as file:
        file.write(encoded)
    return Written(path, len(encoded) / 1e6, float(cosines.mean()), float(cosines.min()))


def write_all(
    saved_model: str,
    folder: str,
    names: Sequence[str],
    images: np.ndarray | None = None,
    *,
    trusted: bool = False,
) -> Iterator[Written | NotWritten]:
    """Yields for each format, as `write` gives them, the file or the reason why it is not written."""
    for name in names:
        checks.one_of("format", name, FORMATS)
    for name in names:
        try:
            yield write(saved_model, folder, name, images, trusted=trusted)
        except NotWritten as reason:
            yield reason


def random_inputs(number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns `[number, *shape]` smooth random images, RGB 0-255; normal vectors if the shape is (dim,)."""
    rng = np.random.default_rng(0)
    if len(shape) == 1:
        return rng.normal(size=(number, *shape)).astype(np.float32)
    small = rng.uniform(0, 255, (number, 5, 5, shape[-1])).astype(np.float32)
    return tf.clip_by_value(tf.image.resize(small, shape[:-1], "bicubic"), 0, 255).numpy()


def images_of(folder: str, size: tuple[int, int]) -> np.ndarray:
    """Returns up to `CHECKED` images of a folder and of those in it, `[images, *size, 3]`.

    Raises:
        InputError: there is none, or one cannot be read.
    """
    paths = sorted(
        os.path.join(here, name)
        for here, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith((".jpg", ".jpeg", ".png"))
    )
    if not paths:
        raise InputError(f"--images has no JPEG or PNG files: {folder}")
    chosen = paths[:: max(1, len(paths) // CHECKED)][:CHECKED]
    pictures = []
    for path in chosen:
        try:
            picture = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        except tf.errors.OpError as error:
            raise InputError(f"{path} cannot be read ({error.message}).") from None
        pictures.append(tf.image.resize(picture, size, antialias=True).numpy())
    return np.stack(pictures)


def image_size(saved_model: str, *, trusted: bool = False) -> tuple[int, int]:
    """Returns the height and width of the images that a SavedModel takes; InputError if it takes none."""
    shape = _embedding(saved_model, trusted)[1]
    if len(shape) != 3:
        raise InputError(f"{saved_model} takes vectors and no images. Leave out --images.")
    return shape[:2]


def _embedding(saved_model, trusted):
    """Returns the embedding function of a SavedModel, and the shape of an image or vector that it takes."""
    with loading(saved_model, trusted=trusted) as path:
        model = tf.saved_model.load(path)
        ((name, spec),) = model.signatures[SIGNATURE].structured_input_signature[1].items()
        shape = spec.shape[1:]
    if None in shape:
        raise InputError(f"{saved_model} takes images of any size; these formats need a fixed one.")

    def embed(images, model=model):
        return model.signatures[SIGNATURE](**{name: tf.constant(images)})["embedding"].numpy()

    return embed, tuple(shape)


def _tflite(optimizations):
    """Returns a function that converts a SavedModel to TensorFlow Lite."""

    def convert(saved_model):
        with files.without_wildcards(saved_model) as path:
            converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=[SIGNATURE])
            converter.optimizations = optimizations
            return converter.convert()

    return convert


def _embed_by_tflite(encoded, images):
    with warnings.catch_warnings():  # The interpreter will move to a package of its own.
        warnings.simplefilter("ignore")
        runner = tf.lite.Interpreter(model_content=encoded).get_signature_runner(SIGNATURE)
    (name,) = runner.get_input_details()
    return np.concatenate([runner(**{name: image[None]})["embedding"] for image in images])


def _onnx(saved_model):
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx
    except ImportError as error:
        raise NotWritten(f"ONNX needs the extra `onnx` ({error.name}): pip install 'tfrank[onnx]'") from None
    with files.without_wildcards(saved_model) as path:
        model = tf.saved_model.load(path)
    ((name, spec),) = model.signatures[SIGNATURE].structured_input_signature[1].items()
    function = tf.function(
        lambda inputs: {"embedding": model.signatures[SIGNATURE](**{name: inputs})["embedding"]},
        input_signature=[spec],
    )
    converted, _ = tf2onnx.convert.from_function(function, input_signature=[spec])
    return converted.SerializeToString()


def _embed_by_onnx(encoded, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(encoded, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: images})[0]


FORMATS = {
    "tflite": Format("model.tflite", _tflite([]), _embed_by_tflite, 0.9999),
    "tflite_int8": Format("model_int8.tflite", _tflite([tf.lite.Optimize.DEFAULT]), _embed_by_tflite, 0.99),
    "onnx": Format("model.onnx", _onnx, _embed_by_onnx, 0.9999),
}
