"""Uses of a model: embedding images, drawing neighbours, exporting."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.configs import sections
from tfrank.configs.sections import Evaluation, Model
from tfrank.data import pipeline, records
from tfrank.data.images import ImageLoader
from tfrank.data.index import RecordIndex, select
from tfrank.evaluation.embed import embed
from tfrank.evaluation.nearest import exhaustive
from tfrank.evaluation.postprocessing.multi_scale import multi_scale
from tfrank.evaluation.postprocessing.whitening import Whitening, whitening_layer
from tfrank.evaluation.report.neighbor_grid import neighbor_grid
from tfrank.evaluation.thresholds import (
    as_json,
    curve,
    far_in_words,
    far_thresholds,
    from_json,
    in_words,
    threshold,
)
from tfrank.export.saved_model import CONTENTS, class_fingerprint, export_saved_model
from tfrank.models.embedding import resolve_options
from tfrank.models.preprocessing import preprocess
from tfrank.run.datasets import Data, build_loader

RAW_SIDE = 64
GRID_QUERIES, GRID_NEIGHBORS = 8, 8
# Number of training images, at most, that validation images are searched among to learn what a match is.
STRANGERS = 2000


def load_best(model: keras.Model, path: str) -> None:
    """Loads the best weights on the validation part, if the file exists."""
    if os.path.exists(path):
        try:
            model.load_weights(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}). Delete it to use the last weights.") from None
        print(f"Best weights on the validation classes: {path}")


def embed_fn(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from images to embeddings, in inference mode, compiled once for any batch size."""
    images = tf.TensorSpec(model.input_shape, tf.float32)
    return tf.function(lambda batch: model(batch, training=False), input_signature=[images], autograph=False)


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


def embed_all(
    data: sections.Data,
    evaluation: Evaluation,
    function: Callable[[tf.Tensor], tf.Tensor],
    index: RecordIndex,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit-norm embeddings and labels of all records of an index."""
    with contextlib.closing(image_batches(data, evaluation, index)) as batches:
        return embed(function, batches, total=len(index), ids=index.id)


def image_batches(
    data: sections.Data, evaluation: Evaluation, index: RecordIndex
) -> Generator[dict[str, Any], None, None]:
    """Yields batches of all images of an index, as the model sees them. Errors name the bad image."""
    loader = build_loader(data, full_size=evaluation.full_size)
    with records.RecordReader(index) as reader:
        batches = pipeline.evaluation_batches(reader, loader, batch_size=evaluation.batch_size)
        yield from pipeline.naming_bad_images(reader, batches, loader)


def draw_neighbors(
    data: sections.Data, embeddings: np.ndarray, labels: np.ndarray, index: RecordIndex, *, seed: int
) -> bytes | None:
    """Draws some random images of an index and their nearest neighbours; returns a PNG, None for vectors."""
    loader = build_loader(data)
    if not isinstance(loader, ImageLoader):
        return None
    queries = np.random.default_rng(seed).permutation(len(labels))[:GRID_QUERIES]
    nearest = exhaustive.exact(embeddings[queries], embeddings, GRID_NEIGHBORS, queries).index
    with records.RecordReader(index) as reader:

        def image_of(number):
            return loader.test(reader.read([number])[0]).numpy()

        def class_of(number):
            text = records.class_text(reader.read([number])[0], data.features.text)
            return text or f"class {labels[number]}"

        return neighbor_grid(image_of, queries, nearest, labels, class_of)


def learned_matches(
    section: sections.Data,
    evaluation: Evaluation,
    function: Callable[[tf.Tensor], tf.Tensor],
    data: Data,
    *,
    seed: int,
) -> dict[str, Any] | None:
    """Learns from held-out classes from which similarity on results are a match; None without such classes.

    The images of the held-out classes are searched for among all of them and some training images, which are
    the wrong results of many other classes.

    Returns:
        What the model states, see `tfrank.search.matches.STATED`.
    """
    if data.validation is None:
        return None
    drawn = np.random.default_rng(seed).permutation(len(data.train))[:STRANGERS]
    strangers = select(data.train, np.sort(drawn))
    embedded = (embed_all(section, evaluation, function, part) for part in (data.validation, strangers))
    rows, labels = zip(*embedded)
    held_out = np.arange(sum(map(len, labels))) < len(labels[0])
    # Classes may have the same numbers in both.
    numbers = np.unique(np.stack([np.concatenate(labels), held_out]), axis=1, return_inverse=True)[1]
    measured = curve(np.concatenate(rows), numbers, queries=held_out)
    stated = {
        "precision": evaluation.match_precision,
        "curve": as_json(measured),
        "trained": class_fingerprints(data.train, section.features.text),
    }
    if evaluation.match_far:
        (found,) = far_thresholds(rows[0], labels[0], fars=[evaluation.match_far])
        similarity = found.high if np.isfinite(found.high) else None
        stated |= {"far": similarity, "sentence": far_in_words(found)}
    return stated


def class_fingerprints(index: RecordIndex, text: str) -> list[str]:
    """Returns the fingerprints of the names of the classes of an index, as far as its records have names.

    Args:
        index: the records.
        text: the name of the feature that has the names.
    """
    firsts = np.unique(index.label, return_index=True)[1]
    with records.RecordReader(index) as reader:
        names = [records.class_text(reader.read([row])[0], text) for row in firsts]
    return sorted({class_fingerprint(name) for name in names if name})


def match_sentence(stated: Mapping[str, Any]) -> str:
    """Returns `learned_matches` in words, for an index of as many images as it was learnt among."""
    if "sentence" in stated:
        return stated["sentence"]
    return in_words(threshold(from_json(stated["curve"]), stated["precision"]))


def export(
    data: sections.Data,
    evaluation: Evaluation,
    model: keras.Model,
    folder: str,
    whitening: Whitening | None = None,
    *,
    scales: Sequence[float] = (1.0,),
    matches: Mapping[str, Any] | None = None,
) -> None:
    """Writes a SavedModel that embeds as it was measured: at these scales, then whitened if given.

    Its `encoded` signature decodes images as training did. It states `matches`, see `learned_matches`.

    Raises:
        InputError: a scale is not 1, but the model takes images of one size only.
    """
    function, loader = embed_fn(model), build_loader(data, full_size=evaluation.full_size)
    if tuple(scales) != (1.0,):
        if None not in model.input_shape[1:3]:
            raise InputError(
                f"A model of images of {model.input_shape[1:3]} pixels cannot be exported at scales"
                f" {tuple(scales)}. Give one of any size: `experiment.build_model(..., any_size=True)`."
            )
        function = multi_scale(function, scales)

    def whitened(images):
        # Whitening was learnt on unit-norm embeddings.
        return whitening_layer(whitening)(l2_normalize(tf.cast(function(images), tf.float32)))

    contents = {"whitening": evaluation.whitening if whitening else 0.0, "scales": list(scales)}
    contents |= {"matches": dict(matches)} if matches else {}
    served = whitened if whitening else function
    # A vector has no file that could be decoded.
    decode = loader.serve if isinstance(loader, ImageLoader) else None
    export_saved_model(model, folder, decode, served, {CONTENTS: json.dumps(contents)})
