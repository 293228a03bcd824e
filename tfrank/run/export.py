"""Writes the SavedModel of a run, which embeds as the model was measured."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.configs.sections import Data, Evaluation
from tfrank.data.images import ImageLoader
from tfrank.evaluation.postprocessing.mirror import with_mirror
from tfrank.evaluation.postprocessing.multi_scale import multi_scale
from tfrank.evaluation.postprocessing.whitening import Whitening, whitening_layer
from tfrank.export.saved_model import CONTENTS, export_saved_model
from tfrank.run.datasets import build_test_loader
from tfrank.run.embedding import embed_fn


def export_model(
    data: Data,
    evaluation: Evaluation,
    model: keras.Model,
    folder: str,
    whitening: Whitening | None = None,
    *,
    scales: Sequence[float] = (1.0,),
    mirror: bool = False,
    matches: Mapping[str, Any] | None = None,
    origin: str = "",
) -> None:
    """Writes a SavedModel that embeds as it was measured: mirrored, at these scales, then whitened if given.

    Its `encoded` signature decodes images as training did. It states `matches`, see `learned_matches`,
    and `origin`, the fingerprint of the model that it takes the place of in an index.

    Raises:
        InputError: a scale is not 1, but the model takes images of one size only.
    """
    function, loader = embed_fn(model), build_test_loader(data, evaluation)
    if mirror:
        function = with_mirror(function)
    if tuple(scales) != (1.0,):
        if None not in model.input_shape[1:3]:
            raise InputError(
                f"A model of images of {model.input_shape[1:3]} pixels cannot be exported at scales"
                f" {tuple(scales)}. Give one of any size: `experiment.build_model(..., for_tests=True)`."
            )
        function = multi_scale(function, scales)

    def whitened(images):
        # Whitening was learnt on unit-norm embeddings.
        return whitening_layer(whitening)(l2_normalize(tf.cast(function(images), tf.float32)))

    contents = {"whitening": evaluation.whitening if whitening else 0.0, "scales": list(scales)}
    contents |= {"mirror": True} if mirror else {}
    contents |= {"matches": dict(matches)} if matches else {}
    contents |= {"origin": origin} if origin else {}
    served = whitened if whitening else function
    # A vector has no file that could be decoded.
    decode = loader.serve if isinstance(loader, ImageLoader) else None
    export_saved_model(model, folder, decode, served, {CONTENTS: json.dumps(contents)})
