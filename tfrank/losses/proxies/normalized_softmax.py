"""Normalized softmax (Zhai and Wu, BMVC 2019, arXiv 1811.12649)."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.tails import class_entropy
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def normalized_softmax_loss(cosines: tf.Tensor, class_index: tf.Tensor, *, temperature: float) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `NormalizedSoftmaxLoss`.

    Args:
        cosines: `[batch, proxies]` float.
        class_index: `[batch]` int32, the column of the proxy of each row's class.
        temperature: positive.
    """
    return class_entropy(cosines / temperature, class_index)


@keras.saving.register_keras_serializable("tfrank")
class NormalizedSoftmaxLoss(ProxyLoss):
    """Softmax classification by cosines: pulls an embedding to its class's proxy, away from all others.

        L_q = -log(exp(c_y / temperature) / sum over all classes z of exp(c_z / temperature))

    with c_z the cosine of the embedding with the proxy of class z, and y the embedding's class.

    Args:
        labels: the training labels, see `ProxyLoss`.
        temperature: positive; the paper's sigma. Default 0.05.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes]`.

    Every row counts, even one without another row of its class in the batch. With one class the loss is 0.

    Reference: Zhai and Wu, Classification is a Strong Baseline for Deep Metric Learning, BMVC 2019,
    arXiv 1811.12649. The paper's layer normalisation and class-balanced batches are left to the model and the
    sampler. Memory: about two matrices `[batch, classes]`.

    >>> loss = NormalizedSoftmaxLoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    0.1269
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        temperature: checks.PositiveFloat = 0.05,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "normalized_softmax",
    ):
        hyper_parameters = {"temperature": temperature}
        super().__init__(
            normalized_softmax_loss,
            hyper_parameters,
            labels,
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )
