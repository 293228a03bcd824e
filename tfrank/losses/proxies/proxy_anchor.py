"""Proxy-Anchor (Kim et al., CVPR 2020, arXiv 2003.13911)."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core.tails import LOG_OF_ZERO, log_of_one_and_sum
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def proxy_anchor_loss(
    cosines: tf.Tensor, class_index: tf.Tensor, known: tf.Tensor, *, alpha: float, delta: float
) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `ProxyAnchorLoss`, with the rows of all replicas.

    Args:
        cosines: `[batch, proxies]` float.
        class_index: `[batch]` int32, the column of the proxy of each row's class.
        known: `[batch]` bool, the rows that count.
        alpha: positive.
        delta: cosine, at least 0.
    """
    proxies, dtype = tf.shape(cosines)[1], cosines.dtype
    own, other = _masks(class_index, known, proxies)
    of_all = distributed.gather_rows(cosines)
    counted = distributed.gather_rows(tf.cast(known, tf.int32)) > 0
    all_own, all_other = _masks(distributed.gather_rows(class_index), counted, proxies)
    pull = _of_rows(-alpha * (of_all - delta), all_own)
    push = _of_rows(alpha * (of_all + delta), all_other)
    of_class, of_others = (tf.reduce_sum(tf.cast(mask, dtype), axis=0) for mask in (all_own, all_other))
    present = tf.maximum(tf.reduce_sum(tf.cast(of_class > 0, dtype)), 1)
    # Each proxy's terms are shared equally by their rows.
    pull /= present * tf.maximum(of_class, 1)
    push /= tf.cast(proxies, dtype) * tf.maximum(of_others, 1)
    shares = tf.where(own, pull, tf.zeros_like(pull)) + tf.where(other, push, tf.zeros_like(push))
    return tf.reduce_sum(tf.cast(counted, dtype)) * tf.reduce_sum(shares, axis=1)


def _masks(class_index, known, proxies):
    """`[batch, proxies]`: the proxy of each row's class, and those of other classes."""
    own = tf.one_hot(class_index, proxies, on_value=True, off_value=False)
    return own & known[:, None], ~own & known[:, None]


def _of_rows(exponents, mask):
    """`[proxies]`: log(1 + sum of exp(exponents)) over the rows of the mask."""
    return log_of_one_and_sum(tf.where(mask, exponents, tf.constant(LOG_OF_ZERO, exponents.dtype)), axis=0)


@keras.saving.register_keras_serializable("tfrank")
class ProxyAnchorLoss(ProxyLoss):
    """Takes each proxy as an anchor: pulls the rows of its class, pushes all others, the hard ones most.

        pull_z = log(1 + sum over rows x of class z of exp(-alpha (c_xz - delta)))
        push_z = log(1 + sum over rows x of other classes of exp(alpha (c_xz + delta)))
        loss   = mean of pull_z over the classes z of the batch + mean of push_z over all classes   (eq. 4)

    with c_xz the cosine of row x with the proxy of class z. The sums are over the rows of all replicas, so
    that N replicas equal one device.

    The loss is no mean over rows. For `reduction=None` and sample weights, each pull_z and push_z is shared
    equally by its rows, so that the mean of L_q is the loss. A row of weight 0 stays in the sums of others.

    Args:
        labels: the training labels, see `ProxyLoss`.
        alpha: positive. Default 32.
        delta: cosine, at least 0; the paper's margin. Default 0.1.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes]`.

    Every row counts, even one without another row of its class in the batch.

    Reference: Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, arXiv 2003.13911; defaults
    are the paper's. Memory: about six matrices `[global batch, classes]`.

    >>> loss = ProxyAnchorLoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    5.1874
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        alpha: checks.PositiveFloat = 32.0,
        delta: checks.NonNegativeFloat = 0.1,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "proxy_anchor",
    ):
        hyper_parameters = dict(alpha=alpha, delta=delta)
        super().__init__(
            proxy_anchor_loss,
            hyper_parameters,
            labels,
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )

    def of_cosines(self, cosines: tf.Tensor, class_index: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        """The loss of each row, `[batch]`, given the column of its class, and which rows count."""
        return proxy_anchor_loss(cosines, class_index, known, **self.hyper_parameters)
