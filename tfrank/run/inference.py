"""Uses of a model: embedding images, drawing neighbours, exporting."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.data import pipeline, records
from tfrank.data.index import RecordIndex
from tfrank.evaluation.embed import embed
from tfrank.evaluation.postprocessing.multi_scale import multi_scale
from tfrank.evaluation.postprocessing.whitening import Whitening, whitening_layer
from tfrank.evaluation.report import text
from tfrank.evaluation.search import exhaustive
from tfrank.evaluation.thresholds import PERHAPS, far_thresholds, thresholds
from tfrank.export.saved_model import CONTENTS, export_saved_model
from tfrank.models.embedding import resolve_options
from tfrank.models.preprocessing import preprocess
from tfrank.run import settings
from tfrank.run.datasets import build_loader

RAW_SIDE = 64
GRID_QUERIES, GRID_NEIGHBORS = 8, 8


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
        digest.update(np.ascontiguousarray(variable.value.numpy()))
    return digest.hexdigest()


def raw_input(config: ConfigDict) -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns the baseline embedding, by its name: the input itself.

    That is a vector, or a preprocessed image of at most `RAW_SIDE` pixels a side.
    """
    if settings.takes_vectors(config):
        return {"vectors": tf.identity}
    model = config.model
    mode = resolve_options(backbone=model.backbone, preprocessing=model.preprocessing)["preprocessing"]
    side = min(config.data.image_size, RAW_SIDE)

    def embed(batch):
        small = tf.image.resize(batch, [side, side], antialias=True) if side < batch.shape[1] else batch
        return tf.reshape(preprocess(small, mode), [len(batch), -1])

    return {"raw pixels": embed}


def embed_all(
    config: ConfigDict, function: Callable[[tf.Tensor], tf.Tensor], index: RecordIndex
) -> tuple[np.ndarray, np.ndarray]:
    """Returns unit-norm embeddings and labels of all records of an index."""
    with contextlib.closing(image_batches(config, index)) as batches:
        return embed(function, batches, total=len(index), ids=index.id)


def image_batches(config: ConfigDict, index: RecordIndex) -> Iterator[dict]:
    """Yields batches of all images of an index, as the model sees them. Errors name the bad image."""
    loader = build_loader(config)
    with records.RecordReader(index) as reader:
        batches = pipeline.evaluation_batches(reader, loader, batch_size=config.evaluation.batch_size)
        yield from pipeline.naming_bad_images(reader, batches, loader)


def draw_neighbors(
    config: ConfigDict, embeddings: np.ndarray, labels: np.ndarray, index: RecordIndex
) -> bytes | None:
    """Draws some random images of an index and their nearest neighbours; returns a PNG, None for vectors."""
    if settings.takes_vectors(config):
        return None
    queries = np.random.default_rng(config.seed).permutation(len(labels))[:GRID_QUERIES]
    nearest = exhaustive.exact(embeddings[queries], embeddings, GRID_NEIGHBORS, queries).index
    loader = dataclasses.replace(build_loader(config), full_size=False)
    with records.RecordReader(index) as reader:

        def image_of(number):
            return loader.test(reader.read([number])[0]).numpy()

        def class_of(number):
            text = records.class_text(reader.read([number])[0], config.data.features.text)
            return text or f"class {labels[number]}"

        return text.neighbor_grid(image_of, queries, nearest, labels, class_of)


def match_thresholds(
    config: ConfigDict, function: Callable[[tf.Tensor], tf.Tensor], validation: RecordIndex | None
) -> dict[str, dict[str, float]]:
    """Learns from held-out classes from which similarity on two images match; {} without such classes.

    "match": by the precision of nearest images, or the false accept rate, of the config. "perhaps": from
    where on half of the nearest images are of the query's class.
    """
    if validation is None:
        return {}
    held_out = embed_all(config, function, validation)
    match, perhaps = thresholds(*held_out, precisions=(config.evaluation.match_precision, PERHAPS))
    if config.evaluation.match_far:
        (match,) = far_thresholds(*held_out, fars=[config.evaluation.match_far])
    return {"match": match._asdict(), "perhaps": perhaps._asdict()}


def match_sentence(matches: Mapping[str, Mapping[str, float]]) -> str:
    """Returns `match_thresholds` in words.

    >>> match_sentence({"match": {"similarity": 0.7, "low": 0.65, "high": 0.8, "precision": 0.95}})
    "From similarity 0.70 on (95 % interval 0.65 to 0.80), 95 % of nearest images are of the query's class."
    >>> match_sentence({"match": {"similarity": 2, "low": 2, "high": 2, "far": 0.001, "tar": 0, "pairs": 80}})
    'No similarity is called a match: 0.1 % of the 80 pairs of different classes are less than one.'
    """
    match = matches["match"]
    reached = f"From similarity {match['similarity']:.2f} on (95 % interval {match['low']:.2f} to"
    reached += f" {match['high']:.2f}), "
    if "far" in match:
        pairs = f"{100 * match['far']:g} % of the {match['pairs']:,} pairs of different classes"
        if match["similarity"] > 1:
            return f"No similarity is called a match: {pairs} are less than one."
        return f"{reached}at most {pairs} are accepted, and {100 * match['tar']:.1f} % of those of one class."
    if match["similarity"] > 1:
        return f"At no similarity are {match['precision']:.0%} of nearest images of the query's class."
    return f"{reached}{100 * match['precision']:.0f} % of nearest images are of the query's class."


def export(
    config: ConfigDict,
    model: keras.Model,
    folder: str,
    whitening: Whitening | None = None,
    *,
    scales: Sequence[float] = (1.0,),
    matches: Mapping[str, Any] | None = None,
) -> None:
    """Writes a SavedModel that embeds as it was measured: at these scales, then whitened if given.

    Its `encoded` signature decodes images as training did. It states `matches`, see `match_thresholds`.

    Raises:
        InputError: a scale is not 1, but the model takes images of one size only.
    """
    function, loader = embed_fn(model), build_loader(config)
    if tuple(scales) != (1.0,):
        if None not in model.input_shape[1:3]:
            raise InputError(
                f"A model of images of {model.input_shape[1:3]} pixels cannot be exported at scales"
                f" {tuple(scales)}. Give one of any size: `experiment.build_model(config, any_size=True)`."
            )
        function = multi_scale(function, scales)

    def whitened(images):
        # Whitening was learnt on unit-norm embeddings.
        return whitening_layer(whitening)(l2_normalize(tf.cast(function(images), tf.float32)))

    contents = {"whitening": config.evaluation.whitening if whitening else 0.0, "scales": list(scales)}
    contents |= {"thresholds": dict(matches)} if matches else {}
    served = whitened if whitening else function
    # A vector has no file that could be decoded.
    decode = None if settings.takes_vectors(config) else loader.serve
    export_saved_model(model, folder, decode, served, {CONTENTS: json.dumps(contents)})
