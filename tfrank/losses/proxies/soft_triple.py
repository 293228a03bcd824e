"""SoftTriple (Qian et al., ICCV 2019, arXiv 1909.05235): several proxies, the centres, for each class."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.tails import class_entropy
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def soft_triple_loss(
    cosines: tf.Tensor,
    class_index: tf.Tensor,
    *,
    proxies_per_class: int,
    scale: float,
    gamma: float,
    margin: float,
) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `SoftTripleLoss`.

    Args:
        cosines: `[batch, classes x proxies_per_class]` float, with adjacent columns for a class.
        class_index: `[batch]` int32, the index of each row's class.
        proxies_per_class: at least 1.
        scale: positive.
        gamma: positive.
        margin: at least 0.
    """
    classes = cosines.shape[1] // proxies_per_class
    by_class = tf.reshape(cosines, [-1, classes, proxies_per_class])
    similarities = _soft_maximum(by_class, gamma)
    own_margins = tf.one_hot(class_index, classes, tf.constant(margin, cosines.dtype), dtype=cosines.dtype)
    return class_entropy(scale * (similarities - own_margins), class_index)


def _soft_maximum(x, gamma):
    """s = sum over k of p_k x_k, with p = softmax(x / gamma), along the last axis.

    The slope, ds/dx_k = p_k (1 + (x_k - s) / gamma), is written out, as that takes a third of the memory of
    autodiff.
    """

    @tf.custom_gradient
    def maximum(x):
        p = tf.nn.softmax(x / gamma)
        s = tf.reduce_sum(p * x, axis=-1, keepdims=True)

        def gradient(upstream):
            return upstream[..., None] * p * (1 + (x - s) / gamma)

        return s[..., 0], gradient

    return maximum(x)


@keras.saving.register_keras_serializable("tfrank")
class CentersRegularizer(keras.regularizers.Regularizer):
    """Pulls the proxies of a class together: tau x half the mean distance between two of them.

        tau / (C K (K - 1)) sum over classes, and pairs t < s of sqrt(2 - 2 w_s . w_t)

    for unit vectors, with C classes of K proxies each. The slope at distance 0 is set to 0.

    Args:
        tau: at least 0.
        proxies_per_class: K, at least 2; the proxies of a class are adjacent.

    Called on `[C K, dim]` proxies it returns a scalar. Memory: a few times `[C, K, K]` and the proxies.

    >>> round(float(CentersRegularizer(1.0, proxies_per_class=2)(tf.eye(4))), 4)
    0.7071
    """

    def __init__(self, tau: float, *, proxies_per_class: int):
        self.tau = checks.number("tau", tau, at_least=0)
        self.proxies_per_class = checks.integer("proxies_per_class", proxies_per_class, at_least=2)

    def __call__(self, proxies: tf.Tensor) -> tf.Tensor:
        k = self.proxies_per_class
        centers = l2_normalize(tf.convert_to_tensor(proxies))
        centers = tf.reshape(centers, [-1, k, centers.shape[1]])
        squared = 2 - 2 * tf.matmul(centers, centers, transpose_b=True)
        apart = np.triu(np.ones([k, k], bool), 1) & (squared > 0)
        # `where` differentiates both branches, so take the root of 1 for the pairs that are left out.
        distances = tf.sqrt(tf.where(apart, squared, tf.ones_like(squared)))
        total = tf.reduce_sum(tf.where(apart, distances, tf.zeros_like(squared)))
        return self.tau * total / (proxies.shape[0] * (k - 1))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"tau": self.tau, "proxies_per_class": self.proxies_per_class}


@keras.saving.register_keras_serializable("tfrank")
class SoftTripleLoss(ProxyLoss):
    """Softmax classification in which a class has several centres, and the nearest one counts, softly.

        c_zk = cosine of the embedding with the k-th proxy of class z
        s_z  = sum over k of c_zk exp(c_zk / gamma) / sum over k of exp(c_zk / gamma)
        a    = s_y - margin
        L_q  = -log(exp(scale a) / (exp(scale a) + sum over classes z != y of exp(scale s_z)))

    with y the embedding's class. The layer that `proxies()` creates adds a regulariser once per step,
    whatever the batch. It pulls the proxies of a class together (`CentersRegularizer`), and is not part of
    `loss(...)`:

        tau / (C K (K - 1)) sum over classes, and pairs t < s of sqrt(2 - 2 w_s . w_t)

    for C classes of K proxies w each, unit vectors.

    Args:
        labels: the training labels, see `ProxyLoss`.
        proxies_per_class: K, at least 1. Default 10.
        scale: positive; the paper's lambda. Default 20.
        gamma: positive. The smaller, the more the nearest centre dominates. Default 0.1.
        margin: at least 0; the paper's delta. Default 0.01.
        tau: weight of the regulariser, at least 0. Default 0.2.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes x proxies_per_class]`.

    Every row counts, even one without another row of its class in the batch. With one class the loss is 0.

    Reference: Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019,
    arXiv 1909.05235; defaults are the paper's. Memory: about four matrices
    `[batch, classes x proxies_per_class]`.

    >>> loss = SoftTripleLoss(labels=[3, 7], proxies_per_class=2)
    >>> round(float(loss([7, 3], [[0.1, 0.0, 0.2, 0.3], [0.1, 0.0, 0.0, 0.0]])), 4)
    0.1357
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        proxies_per_class: checks.PositiveInt = 10,
        scale: checks.PositiveFloat = 20.0,
        gamma: checks.PositiveFloat = 0.1,
        margin: checks.NonNegativeFloat = 0.01,
        tau: checks.NonNegativeFloat = 0.2,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "soft_triple",
    ):
        hyper_parameters = dict(proxies_per_class=proxies_per_class, scale=scale, gamma=gamma, margin=margin)
        super().__init__(
            soft_triple_loss,
            hyper_parameters,
            labels,
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )
        self.proxies_per_class = int(hyper_parameters["proxies_per_class"])
        self.tau = tau
        if self.tau and self.proxies_per_class > 1:
            self.regularizer = CentersRegularizer(self.tau, proxies_per_class=self.proxies_per_class)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "tau": self.tau}
