"""Proxy-NCA++ (Teh et al., ECCV 2020, arXiv 2004.01113)."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.proxies.normalized_softmax import normalized_softmax_loss
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def proxy_nca_pp_loss(cosines: tf.Tensor, class_index: tf.Tensor, *, temperature: float) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `ProxyNCAPlusPlusLoss`.

    Args:
        cosines: `[batch, proxies]` float.
        class_index: `[batch]` int32, the column of the proxy of each row's class.
        temperature: positive.
    """
    # d = 2 - 2 c; the factor exp(-2 / T) cancels between numerator and denominator.
    return normalized_softmax_loss(cosines, class_index, temperature=temperature / 2)


@keras.saving.register_keras_serializable("tfrank")
class ProxyNCAPlusPlusLoss(ProxyLoss):
    """Proxy-NCA as a probability: the softmax, over all proxies, of the negative squared distances.

        d_z = |x - p_z|^2 = 2 - 2 c_z, between unit vectors                                  (0 to 4)
        L_q = -log(exp(-d_y / temperature) / sum over all classes z of exp(-d_z / temperature))

    with p_z the proxy of class z, c_z its cosine with the embedding x, and y the embedding's class. It is
    `NormalizedSoftmaxLoss` at half the temperature.

    Args:
        labels: the training labels, see `ProxyLoss`.
        temperature: positive. Default 1/9.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes]`.

    Every row counts, even one without another row of its class in the batch. With one class the loss is 0.

    Reference: Teh et al., ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis,
    ECCV 2020, arXiv 2004.01113. The loss is one part of it; the others are max pooling, layer
    normalisation, class-balanced batches, and a higher learning rate for proxies (the multipliers of
    `tfrank.training.optimizers.build_optimizer`). Memory: about two matrices `[batch, classes]`.

    >>> loss = ProxyNCAPlusPlusLoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    0.153
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        temperature: checks.PositiveFloat = 1 / 9,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "proxy_nca_pp",
    ):
        hyper_parameters = {"temperature": temperature}
        super().__init__(
            proxy_nca_pp_loss,
            hyper_parameters,
            labels,
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )
