"""ProxyLoss: the base class of losses with learned proxies of classes, a `keras.losses.Loss`."""

import reprlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, ignore_labels, loss_layers
from tfrank.losses.core.known_labels import checked_labels, class_index, required
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.ranking_loss import checked_batch, global_mean, keras_builds
from tfrank.losses.proxies.layer import Proxies


class ProxyLoss(Loss):
    """A loss of integer labels and embeddings, by their cosines with proxies of all training classes.

        loss = sum_q w_q L_q / sum_q w_q        over the rows q of the global batch

    The proxies are weights of a layer, which `proxies` creates. It is the last layer of the training model
    and returns embeddings, so what a metric or a callback gets from the training model is an embedding.
    The embedding model before it is what is exported.

    Every replica has all proxies and scores its own rows. Values and gradients are to be summed, as with
    `RankingLoss`: N replicas then equal one device.

    Args:
        core: f(cosines, class_index, **hyper_parameters). Takes `[batch, proxies]` cosines and the index of
            each row's class in `labels`, `[batch]` int32. Returns the loss of each row, `[batch]`.
        hyper_parameters: arguments of the core. `get_config` returns them too, besides the three below.
        labels: the training labels, any iterable of integers in any order; duplicates are ignored.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Called as `loss(labels, embeddings, sample_weight=None)`:
        labels: `[batch]` or `[batch, 1]`, any integer dtype; compared as integers.
        embeddings: `[batch, dim]`, any float dtype and norm, from a layer that `proxies` made. Before it is
            called for the first time, `[batch, proxies]` cosines in the order of the sorted labels.
        sample_weight: `[batch]` or `[batch, 1]` w_q, at least 0; 1 if None.

    A label that is not one of `labels` raises an error that names it: InputError, or TensorFlow's
    InvalidArgumentError inside a graph. XLA (`jit_compile`) leaves such checks out. A row with such a label
    then has no loss and no gradient, and is left out of the mean.

    Memory: a few matrices `[batch, proxies]`.

    Attributes:
        labels: the training labels, `[classes]` int64, sorted and unique.
        proxies_per_class: 1 unless a loss states otherwise. The proxies of a class are adjacent.
        regularizer: regulariser of the proxies; None unless a loss states otherwise.
        iteration: see `RankingLoss`; not read, as none of these losses changes with the step.
        variables: none, as the proxies belong to the layer.

    >>> import tfrank
    >>> images, labels = tf.random.stateless_normal([64, 8], [0, 1]), tf.range(64) // 4
    >>> model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    >>> loss = tfrank.ProxyNCALoss(labels)
    >>> training = keras.Sequential([model, loss.proxies()])
    >>> training.compile("adam", loss=loss)
    >>> history = training.fit(images, labels, verbose=0)
    >>> model.count_params(), training.count_params()
    (36, 100)
    """

    proxies_per_class: int = 1
    regularizer: keras.regularizers.Regularizer | None = None

    def __init__(
        self,
        core: Callable[..., tf.Tensor],
        hyper_parameters: dict[str, Any],
        labels: Iterable[int],
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str | None = None,
    ):
        super().__init__(reduction=reduction, ignore_label=ignore_label, name=name)
        self._core = core
        self.hyper_parameters = hyper_parameters
        labels = np.unique(checked_labels(labels))
        self.labels = labels[ignore_labels.kept(labels, self.ignore_label)]
        if not self.labels.size:
            raise checks.invalid("labels", "another label than ignore_label", [self.ignore_label])
        # Layers that `proxies` made and a model still has.
        self._made: weakref.WeakSet[Proxies] = weakref.WeakSet()

    @property
    def num_proxies(self) -> int:
        """The number of proxies of all classes."""
        return self.labels.size * self.proxies_per_class

    def proxies(self, *, seed: int = 0, **options: Any) -> Proxies:
        """A new layer of proxies for this loss, to follow the embedding model in training."""
        options = {"loss": self.name, **options}
        layer = Proxies(self.num_proxies, regularizer=self.regularizer, seed=seed, **options)
        self._made.add(layer)
        return layer

    def layer_of(self, output: tf.Tensor) -> Proxies | None:
        """Returns the layer of this loss that an output of the model passed; None if no layer is known.

        An output that left a `tf.function` has no mark; the layer is then the one that this loss made.

        Raises:
            InputError: several layers fit.
        """
        passed = [layer for layer in loss_layers.passed(output) if isinstance(layer, Proxies)]
        fitting = [layer for layer in passed if layer.num_proxies == self.num_proxies] or list(self._made)
        made = [layer for layer in fitting if layer in self._made]
        # A loaded loss made none of them.
        named = [layer for layer in fitting if layer.loss == self.name]
        for layers in (fitting, made, named):
            if len(layers) == 1:
                return layers[0]
        if not fitting:
            return None
        raise checks.InputError(
            f"{len(fitting)} layers of proxies fit the loss {self.name!r}. Make a loss for each output and"
            " each model, with a name of its own where one output has several: ArcFaceLoss(labels,"
            " name='first')."
        )

    # Overrides `__call__`, as Keras casts labels to float before `call`: 2^24 and 2^24 + 1 would be equal.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        if keras_builds() and not loss_layers.passed(y_pred):
            return tf.zeros([])  # Keras' own tensors have no mark, and nothing reads the value.
        with tf.name_scope(self.name):
            losses, weights = self.rows(y_true, y_pred, sample_weight)
            return global_mean(losses, weights, self.reduction)

    def rows(
        self, labels: tf.Tensor, embeddings: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L_q and w_q of the rows of this replica, see `RankingLoss.rows`."""
        layer = self.layer_of(embeddings)
        given = self._checked_cosines(embeddings) if layer is None else embeddings
        labels, rows, weights = checked_batch(labels, given, sample_weight)
        class_index, known = self.class_index(labels)
        losses = self.of_cosines(rows if layer is None else layer.cosines(rows), class_index, known)
        return losses, tf.where(known, weights, tf.zeros_like(weights))

    def of_cosines(self, cosines: tf.Tensor, class_index: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        """The loss of each row, `[batch]`.

        Args:
            cosines: `[batch, proxies]`.
            class_index: `[batch]` int32, the number of each row's class.
            known: `[batch]` bool, the rows that count. Only losses that compare rows need it.
        """
        return self._core(cosines, class_index, **self.hyper_parameters)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), **self.hyper_parameters, "labels": self.labels.tolist()}

    def _shown_arguments(self):
        return {**super()._shown_arguments(), "labels": reprlib.repr(self.labels.tolist())}

    def _checked_cosines(self, cosines):
        cosines, shape = tf.convert_to_tensor(cosines), [None, self.num_proxies]
        if not cosines.shape.is_compatible_with(shape):
            expected = (
                f"shape [batch, {self.num_proxies}], a column for each proxy of {self.labels.size} classes:"
                " add loss.proxies() as the last layer of the training model"
            )
            raise checks.invalid("cosines", expected, str(cosines.shape))
        # Catches embeddings with as many dimensions as there are proxies. NaN passes: the loss shows it.
        largest = tf.maximum(tf.reduce_max(cosines), -tf.reduce_min(cosines))
        expected = "numbers from -1 to 1: add loss.proxies() as the last layer of the training model"
        with tf.control_dependencies(required(~(largest > 1.01), "cosines", expected, largest)):
            return tf.ensure_shape(tf.identity(cosines), shape)

    def class_index(self, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The index of each label among the training labels, `[batch]` int32, and whether it is known.

        The label to ignore is not known.

        Raises:
            InputError: another label is unknown, see the class.
        """
        if self.ignore_label is None:
            return class_index(self.labels, labels, self.name)
        kept = labels != self.ignore_label
        index, known = class_index(self.labels, tf.where(kept, labels, self.labels[0]), self.name)
        return index, known & kept
