"""Callback for Keras' `fit`: retrieval metrics at the end of an epoch."""

import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, ignore_labels
from tfrank.common.checks import InputError
from tfrank.common.normalize import side_by_side
from tfrank.evaluation.embed import embed
from tfrank.evaluation.evaluate_arrays import DISTANCES
from tfrank.evaluation.nearest.searchers import SEARCHES
from tfrank.evaluation.ranking_results import leave_one_out

EXPECTED = (
    "images [n, ...], or a dict or list of inputs, with integer labels [n] or [n, 1], as a tuple (inputs,"
    " labels) or (inputs, labels, weights); or a batched, finite tf.data.Dataset or a PyDataset of such"
    " tuples, or a Dataset of {'image', 'label'}"
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

    Proxies are no part of the embedding: a model that ends in `loss.proxies()` is evaluated by what goes into
    that layer.

    Args:
        data: (inputs, labels), or (inputs, labels, weights) as `fit` takes them; the weights are not used.
            inputs: what the model takes, unchanged: `[n, ...]` of any dtype, strings too, or a dict or a list
            of several. labels: `[n]` or `[n, 1]`, any integer dtype, compared as integers; with several
            outputs also a dict or a list of the labels of each, of which those of the chosen output count.
            Or batches of these: a `tf.data.Dataset` (also of `{"image": images, "label": labels}`), or a
            `keras.utils.PyDataset`.
        ks: the Ks of Recall@K, at least 1; each K must be below the number of images, others are left out.
        every: epochs between evaluations. The first epoch of a `fit` is always evaluated, and the last of
            those asked for. In between, the logs repeat the last values: without them `ModelCheckpoint` would
            overwrite the best model, and `CSVLogger` would lose the columns. So the `patience` of other
            callbacks, which count epochs, has to be that many times larger.
        prefix: prefix of the names in the logs.
        batch_size: images embedded at a time, if `data` are arrays.
        output: the output that is the embedding, for a model with several: the key of a dict, the name of an
            output of a functional model, or its number from 0 if outputs have no names. Given several names,
            these outputs are L2-normalised and concatenated in that order.
        search: "exact", or "scann" for large data: without `val_map`, and with `val_scann_recall`, the
            share of the exact neighbours that ScaNN found.
        distance: "cosine"; or "euclidean", between the embeddings as they are, for those of a loss that does
            not normalise them, such as `LiftedStructureLoss`. Only with exact search.
        ignore_label: the label of images without a class, which are left out; None: there are none.

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
        data: tuple | tf.data.Dataset | keras.utils.PyDataset,
        *,
        ks: Sequence[int] = (1, 10),
        every: int = 1,
        prefix: str = "val_",
        batch_size: int = 256,
        output: str | int | Sequence[str | int] | None = None,
        search: str = "exact",
        distance: str = "cosine",
        ignore_label: int | None = None,
    ):
        super().__init__()
        self._ks = checks.sequence("ks", ks, checks.integer, at_least=1)
        self._every = checks.integer("every", every, at_least=1)
        if not isinstance(prefix, str):
            raise checks.invalid("prefix", "a string", prefix)
        self._prefix = prefix
        self._batch_size = checks.integer("batch_size", batch_size, at_least=1)
        self._output = [output] if isinstance(output, str | int) else output
        self._search = checks.one_of("search", search, SEARCHES)
        self._distance = checks.one_of("distance", distance, DISTANCES)
        if distance != "cosine" and search != "exact":
            raise InputError('Euclidean distance needs `search="exact"`.')
        self._ignore_label = ignore_labels.checked(ignore_label)
        self._data = _checked(data, self._ignore_label)

    def on_train_begin(self, logs=None):
        self._values = {}
        self._outputs = tf.function(self._outputs_of, reduce_retracing=True, autograph=False)
        if len(getattr(self.model, "outputs", None) or []) > 1:
            self._chosen(self.model.output)  # Fails before an epoch is trained.

    def on_epoch_end(self, epoch, logs=None):
        is_last = epoch + 1 == (self.params or {}).get("epochs")
        if not self._values or is_last or (epoch + 1) % self._every == 0:
            normalized = self._distance == "cosine"
            embeddings, labels = embed(
                self._embeddings, self._batches(), unchanged=True, normalized=normalized
            )
            kept = ignore_labels.kept(labels, self._ignore_label)
            embeddings, labels = embeddings[kept], labels[kept]
            search = {"search": self._search, "distance": self._distance}
            metrics = leave_one_out(embeddings, labels, self._ks, **search)
            counts = ("queries", "queries_without_positive")
            self._values = {self._prefix + key: metrics[key] for key in metrics if key not in counts}
        if taken := sorted(
            key for key in self._values.keys() & logs.keys() if logs[key] != self._values[key]
        ):
            warnings.warn(
                f"The logs have {taken[0]} already, of a metric or of another callback. It is replaced, and"
                " callbacks before RetrievalEvaluation have seen the other. Give another prefix, such as"
                " prefix='test_', or name the metric.",
                UserWarning,
                stacklevel=2,
            )
        logs.update(self._values)

    def _outputs_of(self, inputs):
        return self.model(inputs, training=False)

    def _embeddings(self, inputs):
        outputs = self._chosen(self._outputs(inputs))
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
        for batch in _batches_of(self._data, self._batch_size):
            inputs, labels = _pair(batch)
            labels = self._labels_of(labels)
            _check_pair(inputs, labels)
            yield {"image": inputs, "label": np.asarray(labels).reshape(-1)}

    def _labels_of(self, labels):
        """Returns the labels of the chosen output, where each output has labels of its own."""
        if not tf.nest.is_nested(labels):
            return labels
        named = _named(labels, getattr(self.model, "output_names", []))
        return named[checks.one_of("output", (self._output or list(named))[0], named)]


def _named(outputs: Any, names: Sequence[str]) -> dict:
    """Returns the outputs of a model by key; without keys by name; without names by number."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    outputs = tf.nest.flatten(outputs)
    return dict(zip(names if len(set(names)) == len(outputs) else range(len(outputs)), outputs))


def _checked(data, ignore_label):
    """Returns the data; raises InputError if they are seen not to be what is expected."""
    if isinstance(data, tf.data.Dataset):
        inputs, labels = _pair(data.element_spec)
        if not tf.nest.is_nested(labels):
            _check_pair(inputs, labels)
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise checks.invalid("data", EXPECTED, "a Dataset without end")
        return data
    if isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise checks.invalid("data", EXPECTED, "a PyDataset without end")
        return data
    if not isinstance(data, tuple):
        raise checks.invalid("data", EXPECTED, type(data).__name__)
    inputs, labels = map(_arrays, _pair(data))
    if not tf.nest.is_nested(labels):
        _check_pair(inputs, labels)
        classes = np.asarray(labels).reshape(-1)
        classes = classes[ignore_labels.kept(classes, ignore_label)]
        if len(np.unique(classes)) == len(classes):
            raise InputError("No image of `data` has another of its class, so there is nothing to retrieve.")
    return inputs, labels


def _arrays(values):
    """Returns arrays and tensors as they are; lists of numbers or texts, and tables, as arrays."""
    if isinstance(values, Mapping):
        return {name: _arrays(one) for name, one in values.items()}
    if isinstance(values, list | tuple) and any(hasattr(one, "shape") for one in values):
        return [_arrays(one) for one in values]
    return values if isinstance(values, tf.Tensor | tf.RaggedTensor) else np.asarray(values)


def _pair(batch):
    """Returns inputs and labels of what `fit` takes: a tuple of two or three, or a dict of our records."""
    match batch:
        case {"image": inputs, "label": labels}:
            return inputs, labels
        case (inputs, labels) | (inputs, labels, _) if isinstance(batch, tuple):
            return inputs, labels
    raise checks.invalid("data", EXPECTED, _shown(batch))


def _check_pair(inputs, labels):
    """Raises InputError unless these arrays, or their specifications, can be inputs with their labels."""
    sizes = [array.shape[:1] for array in tf.nest.flatten((inputs, labels))]
    shape = tf.TensorShape(labels.shape)
    are_labels = tf.as_dtype(labels.dtype).is_integer and (
        shape.is_compatible_with([None]) or shape.is_compatible_with([None, 1])
    )
    same = all(tf.TensorShape(size).is_compatible_with(other) for size in sizes for other in sizes)
    if not (are_labels and same and len(sizes) > 1):
        raise checks.invalid("data", EXPECTED, _shown((inputs, labels)))


def _shown(batch):
    """Returns dtypes and shapes in the place of arrays, for a message."""
    return tf.nest.map_structure(
        lambda one: f"{one.dtype} {one.shape}" if hasattr(one, "shape") else type(one).__name__, batch
    )


def _batches_of(data, batch_size):
    if isinstance(data, tf.data.Dataset):
        yield from data
    elif isinstance(data, keras.utils.PyDataset):
        yield from (data[number] for number in range(data.num_batches))
    else:
        rows = len(tf.nest.flatten(data[1])[0])
        for start in range(0, rows, batch_size):
            part = slice(start, start + batch_size)
            yield tf.nest.map_structure(operator.itemgetter(part), data)
