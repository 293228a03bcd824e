"""Sampled proxies (Partial FC, An et al., CVPR 2022, arXiv 2203.15565): for very many classes."""

import math
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.dense_gather import gather
from tfrank.losses.core.known_labels import required
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.ranking_loss import checked_batch, global_mean
from tfrank.losses.proxies.layer import Proxies
from tfrank.losses.proxies.proxy_loss import ProxyLoss


@keras.saving.register_keras_serializable("tfrank")
class SampledProxies(Proxies):
    """Holds the proxies of a `SampledProxyLoss`; returns its input, `[batch, dim]` embeddings, as it is."""

    def call(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings."""
        return tf.identity(embeddings)

    def cosines(self, embeddings: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Maps `[batch, dim]` embeddings to their cosines with some proxies, `[batch, columns]`."""
        dtype = tf.float64 if embeddings.dtype == tf.float64 else tf.float32
        some = gather(tf.convert_to_tensor(self.proxies), columns)
        rows, proxies = (l2_normalize(tf.cast(x, dtype)) for x in (embeddings, some))
        return tf.matmul(rows, proxies, transpose_b=True)


@keras.saving.register_keras_serializable("tfrank")
class SampledProxyLoss(Loss):
    """A loss with proxies of which each step uses a share: those of the batch's classes and random others.

        loss = the given loss, with the sums over all classes taken over the classes of the step

    A million classes then take a tenth of the time and memory of their cosines, at share 0.1. At share 1 the
    loss equals the given one. Each step draws other classes; all replicas draw the same.

    Args:
        loss: a loss with proxies, such as `ArcFaceLoss(labels)`.
        share: share of the classes that a step uses, above 0, up to 1. Default 0.1, the paper's r.
        seed: seed of the draws, at least 0.
        name: name of the loss.

    `proxies()` returns the layer that holds the proxies, to follow the embedding model in training. Set
    `iteration`, such as `loss.iteration = optimizer.iterations`, so that the draws differ between steps.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats, the output of that
    layer.

    Raises:
        InputError: the share is less than the classes of a batch, which TensorFlow's InvalidArgumentError
            says inside a graph; or `proxies()` was not called.

    Reference: An et al., Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition
    CNNs by Partial FC, CVPR 2022, arXiv 2203.15565. Memory: that of the given loss times the share, and the
    proxies, their gradient and the optimizer's slots.

    >>> import tfrank
    >>> loss = SampledProxyLoss(tfrank.CosFaceLoss(range(100)), share=0.1)
    >>> loss.iteration = tf.Variable(0, dtype=tf.int64)
    >>> embeddings = loss.proxies()(tf.random.stateless_normal([4, 8], [0, 1]))
    >>> full = tfrank.CosFaceLoss(range(100))
    >>> bool(loss([7, 7, 8, 9], embeddings) < full([7, 7, 8, 9], full.proxies()(embeddings)))
    True
    """

    def __init__(self, loss: ProxyLoss, *, share: float = 0.1, seed: int = 0, name: str = "sampled_proxies"):
        if isinstance(loss, dict):
            loss = keras.losses.deserialize(loss)
        if not isinstance(loss, ProxyLoss):
            raise checks.invalid("loss", "a loss with proxies, such as ArcFaceLoss(labels)", loss)
        super().__init__(reduction=loss.reduction, name=name)
        self.loss, self.seed = loss, checks.integer("seed", seed, at_least=0)
        self.share = checks.number("share", share, above=0, at_most=1)
        self._layer: SampledProxies | None = None

    def proxies(self, *, seed: int = 0, **options: Any) -> SampledProxies:
        """A new layer of proxies for this loss, to follow the embedding model in training."""
        regularizer = self.loss.regularizer
        self._layer = SampledProxies(self.loss.num_proxies, regularizer=regularizer, seed=seed, **options)
        return self._layer

    # See `ProxyLoss.__call__`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        if self._layer is None:
            raise checks.InputError(
                f"The loss {self.name!r} has no proxies yet. Add loss.proxies() as the last layer of the"
                " training model."
            )
        with tf.name_scope(self.name):
            labels, embeddings, weights = checked_batch(y_true, y_pred, sample_weight)
            class_index, known = self.loss.class_index(labels)
            chosen = self._chosen(class_index)
            each = tf.range(self.loss.proxies_per_class)
            columns = tf.reshape(chosen[:, None] * self.loss.proxies_per_class + each, [-1])
            cosines = self._layer.cosines(embeddings, columns)
            losses = self.loss.of_cosines(cosines, tf.searchsorted(chosen, class_index), known)
            return global_mean(losses, tf.where(known, weights, tf.zeros_like(weights)), self.reduction)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        loss = keras.losses.serialize(self.loss)
        return {"loss": loss, "share": self.share, "seed": self.seed, "name": self.name}

    def _shown_arguments(self):
        return {**super()._shown_arguments(), "loss": repr(self.loss)}

    def _chosen(self, class_index):
        """The classes of this step, `[ceil(share x classes)]` int32, ascending."""
        classes = self.loss.labels.size
        count = math.ceil(self.share * classes)
        if count == classes:
            return tf.range(classes)
        own = distributed.gather_rows(class_index)
        seed = tf.stack([tf.constant(self.seed, tf.int64), self.steps_taken()])
        keys = tf.random.stateless_uniform([classes], seed)
        # Keys are below 1, so the classes of the batch come first.
        keys = tf.tensor_scatter_nd_update(keys, own[:, None], tf.fill(tf.shape(own), 2.0))
        needed = tf.reduce_sum(tf.cast(keys > 1, tf.int32))
        expected = f"at most {count}, ceil(share x {classes} classes): raise the share"
        with tf.control_dependencies(required(needed <= count, "classes in a batch", expected, needed)):
            return tf.sort(tf.math.top_k(keys, count, sorted=False).indices)
