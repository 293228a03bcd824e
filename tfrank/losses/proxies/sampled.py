"""Sampled proxies (Partial FC, An et al., CVPR 2022, arXiv 2203.15565): for very many classes."""

import math
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed, loss_layers
from tfrank.losses.core.known_labels import required
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.ranking_loss import checked_batch, global_mean, keras_builds
from tfrank.losses.proxies.layer import Proxies
from tfrank.losses.proxies.proxy_loss import ProxyLoss


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

    `proxies()` returns the layer that holds the proxies, to follow the embedding model in training.
    `fit` tells the step, by which the draws differ; elsewhere set `loss.iteration = optimizer.iterations`.

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
        super().__init__(reduction=loss.reduction, ignore_label=loss.ignore_label, name=name)
        self.loss, self.seed = loss, checks.integer("seed", seed, at_least=0)
        self.share = checks.number("share", share, above=0, at_most=1)

    def proxies(self, *, seed: int = 0, **options: Any) -> Proxies:
        """A new layer of proxies for this loss, to follow the embedding model in training."""
        return self.loss.proxies(seed=seed, **options)

    # See `ProxyLoss.__call__`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        if keras_builds() and not loss_layers.passed(y_pred):
            return tf.zeros([])
        with tf.name_scope(self.name):
            return global_mean(*self.rows(y_true, y_pred, sample_weight), self.reduction)

    def rows(
        self, labels: tf.Tensor, embeddings: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L_q and w_q of the rows of this replica, by the proxies of this step; see `RankingLoss.rows`."""
        layer = self.loss.layer_of(embeddings)
        if layer is None:
            raise checks.InputError(
                f"The loss {self.name!r} has no proxies yet. Add loss.proxies() as the last layer of the"
                " training model."
            )
        labels, embeddings, weights = checked_batch(labels, embeddings, sample_weight)
        class_index, known = self.loss.class_index(labels)
        chosen = self._chosen(class_index)
        each = tf.range(self.loss.proxies_per_class)
        columns = tf.reshape(chosen[:, None] * self.loss.proxies_per_class + each, [-1])
        cosines = layer.cosines(embeddings, columns)
        losses = self.loss.of_cosines(cosines, tf.searchsorted(chosen, class_index), known)
        return losses, tf.where(known, weights, tf.zeros_like(weights))

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
