"""Callback for Keras' `fit`: retrieval metrics at the end of an epoch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.normalize import side_by_side
from tfrank.evaluation.embed import embed
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.evaluation.search.by_name import SEARCHES

EXPECTED = (
    "images [n, ...] with integer labels [n] or [n, 1], as a tuple of two arrays or a batched, finite"
    " tf.data.Dataset of (images, labels) or of {'image', 'label'}"
)


class RetrievalEvaluation(keras.callbacks.Callback):
    """Adds Recall@K and mAP of a data set to the logs of `fit`, equal to those of `eval_main.py`.

    Each image in turn is the query, all others are the gallery. Recall@K is the hit rate of metric
    learning: the share of queries with at least one image of their class among the K nearest, the query
    itself left out. Queries without a positive are left out of every mean.

        evaluation = tfrank.callbacks.RetrievalEvaluation((test_images, test_labels))
        best = keras.callbacks.ModelCheckpoint(
            "best.keras", monitor="val_recall_at_1", mode="max", save_best_only=True
        )
        model.fit(images, labels, epochs=20, callbacks=[evaluation, best])

    The logs get `val_recall_at_<k>` for each k, and `val_map`, 0 to 1. History and the progress bar show
    them; other callbacks that read them (`EarlyStopping`, `ModelCheckpoint`, `CSVLogger`, `TensorBoard`, ...)
    must come after this one in the list. Give them `mode="max"`: Keras cannot know that larger is better.

    The model embeds in inference mode, on one device even under a strategy. Training is unchanged, bit for
    bit. Several selected outputs are L2-normalised and concatenated.

    Args:
        data: (images, labels), arrays; or a batched `tf.data.Dataset` of (images, labels) or of
            `{"image": images, "label": labels}`. images: `[n, ...]`, what the model takes. labels: `[n]` or
            `[n, 1]`, any integer dtype, compared as integers.
        ks: the Ks of Recall@K, at least 1; each K must be below the number of images, others are left out.
        every: epochs between evaluations. The first and the last epoch of a `fit` are always evaluated. In
            between, the logs repeat the last values: without them `ModelCheckpoint` would overwrite the best
            model, and `CSVLogger` would lose the columns.
        prefix: prefix of the names in the logs.
        batch_size: images embedded at a time, if `data` are arrays.
        output: the output that is the embedding, for a model with several: the key of a dict, the name of an
            output of a functional model, or its number from 0 if outputs have no names. Given several names,
            these outputs are L2-normalised and concatenated in that order.
        neighbors: "exact", or "scann" for large data: without `val_map`, and with `val_scann_recall`, the
            share of the exact neighbours that ScaNN found.

    Raises:
        InputError: an argument is bad. During `fit`: the model has several outputs and `output` selects none;
            the model lacks the output that `output` names; an embedding is NaN or infinite (the message
            gives the image's number from 0); an embedding is not `[batch, dim]`; or no class has two images.

    >>> images, labels = np.eye(4, dtype="float32").repeat(2, axis=0), np.arange(8) // 2
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    >>> model.compile("sgd", loss="mse")
    >>> evaluation = RetrievalEvaluation((images, labels), ks=[1])
    >>> history = model.fit(images, images[:, :3], verbose=0, callbacks=[evaluation])
    >>> history.history["val_recall_at_1"], history.history["val_map"]
    ([1.0], [1.0])
    """

    def __init__(
        self,
        data: tuple[np.ndarray, np.ndarray] | tf.data.Dataset,
        *,
        ks: Sequence[int] = (1, 10),
        every: int = 1,
        prefix: str = "val_",
        batch_size: int = 256,
        output: str | int | Sequence[str | int] | None = None,
        neighbors: str = "exact",
    ):
        super().__init__()
        self._ks = checks.sequence("ks", ks, checks.integer, at_least=1)
        self._every = checks.integer("every", every, at_least=1)
        if not isinstance(prefix, str):
            raise checks.invalid("prefix", "a string", prefix)
        self._prefix = prefix
        self._batch_size = checks.integer("batch_size", batch_size, at_least=1)
        self._output = [output] if isinstance(output, str | int) else output
        self._neighbors = checks.one_of("neighbors", neighbors, SEARCHES)
        self._data, self._dtype = _checked(data)

    def on_train_begin(self, logs=None):
        self._values = {}
        self._outputs = tf.function(self._outputs_of, reduce_retracing=True, autograph=False)
        if len(getattr(self.model, "outputs", None) or []) > 1:
            self._chosen(self.model.output)  # Fails before an epoch is trained.

    def on_epoch_end(self, epoch, logs=None):
        is_last = epoch + 1 == (self.params or {}).get("epochs")
        if not self._values or is_last or (epoch + 1) % self._every == 0:
            embeddings, labels = embed(self._embeddings, self._batches())
            metrics = leave_one_out(embeddings, labels, self._ks, neighbors=self._neighbors)
            counts = ("queries", "queries_without_positive")
            self._values = {self._prefix + key: metrics[key] for key in metrics if key not in counts}
        logs.update(self._values)

    def _outputs_of(self, images):
        # `embed` passes float32; `fit` passes the dtype of the data.
        return self.model(tf.cast(images, self._dtype), training=False)

    def _embeddings(self, images):
        outputs = self._chosen(self._outputs(images))
        for output in outputs:
            if len(output.shape) != 2:
                raise InputError(f"The model's output is not [batch, dim]. Its shape is {output.shape}.")
        return outputs[0] if len(outputs) == 1 else side_by_side(outputs)

    def _chosen(self, outputs):
        """Returns the list of outputs that make up the embedding."""
        named = _named(outputs, getattr(self.model, "output_names", []))
        if self._output is not None:
            return [named[checks.one_of("output", name, named)] for name in self._output]
        if len(named) > 1:
            raise InputError(
                f"The model has {len(named)} outputs, {list(named)}. Say which is the embedding:"
                f" RetrievalEvaluation(data, output={next(iter(named))!r}); or give several names to lay them"
                f" side by side: output={list(named)}."
            )
        return list(named.values())

    def _batches(self) -> Iterator[dict]:
        pairs = self._data if isinstance(self._data, tf.data.Dataset) else self._slices()
        for images, labels in pairs:
            labels = np.asarray(labels).reshape(-1)
            if len(labels) != len(images):
                raise checks.invalid("data", EXPECTED, f"{len(images)} images with {len(labels)} labels")
            yield {"image": images, "label": labels}

    def _slices(self):
        for start in range(0, len(self._data[0]), self._batch_size):
            yield tuple(array[start : start + self._batch_size] for array in self._data)


def _named(outputs: Any, names: Sequence[str]) -> dict:
    """Returns the outputs of a model by key; without keys by name; without names by number."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    outputs = tf.nest.flatten(outputs)
    return dict(zip(names if len(set(names)) == len(outputs) else range(len(outputs)), outputs))


def _checked(data):
    """Returns `data` as a dataset of pairs or a pair of arrays, and the dtype of the images."""
    if isinstance(data, tf.data.Dataset):
        spec = data.element_spec
        if isinstance(spec, dict) and {"image", "label"} <= spec.keys():
            data = data.map(lambda batch: (batch["image"], batch["label"]))
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise checks.invalid("data", EXPECTED, "a Dataset without end")
        return data, _image_dtype(data.element_spec)
    if not isinstance(data, tuple):
        raise checks.invalid("data", EXPECTED, type(data).__name__)
    data = tuple(np.asarray(array) for array in data)
    dtype = _image_dtype(tuple(tf.TensorSpec(array.shape, array.dtype) for array in data))
    if len(np.unique(data[1])) == len(data[1]):
        raise InputError("No image of `data` has another of its class, so there is nothing to retrieve.")
    return data, dtype


def _image_dtype(pair):
    match pair:
        case (tf.TensorSpec() as images, tf.TensorSpec() as labels) if (
            labels.dtype.is_integer
            and any(labels.shape.is_compatible_with(shape) for shape in ([None], [None, 1]))
            and labels.shape[:1].is_compatible_with(images.shape[:1])
        ):
            return images.dtype
    raise checks.invalid("data", EXPECTED, pair)
