"""Proxy-NCA (Movshovitz-Attias et al., ICCV 2017, arXiv 1703.07464)."""

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def proxy_nca_loss(cosines: tf.Tensor, class_index: tf.Tensor, *, temperature: float) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `ProxyNCALoss`.

    Args:
        cosines: `[batch, proxies]` float.
        class_index: `[batch]` int32, the column of the proxy of each row's class.
        temperature: positive.
    """
    if cosines.shape[1] == 1:
        return 0 * cosines[:, 0]
    # d = 2 - 2 c; the factor exp(-2 / T) cancels between numerator and denominator.
    logits = 2 * cosines / temperature
    own = tf.one_hot(class_index, cosines.shape[1], on_value=True, off_value=False)
    others = tf.where(own, tf.constant(float("-inf"), logits.dtype), logits)
    own_logit = tf.reduce_sum(tf.where(own, logits, tf.zeros_like(logits)), axis=1)
    return tf.reduce_logsumexp(others, axis=1) - own_logit


@keras.saving.register_keras_serializable("tfrank")
class ProxyNCALoss(ProxyLoss):
    """Pulls an embedding to its class's proxy, away from the proxies of the other classes.

        d_z = |x - p_z|^2 = 2 - 2 c_z, between unit vectors                                  (0 to 4)
        L_q = -log(exp(-d_y / temperature) / sum over classes z != y of exp(-d_z / temperature))

    with p_z the proxy of class z, c_z its cosine with the embedding x, and y the embedding's class. The proxy
    of class y is not in the sum (it is in that of `ProxyNCAPlusPlusLoss`). The loss can therefore be
    negative, and falls below 0 during training.

    Args:
        labels: the training labels, see `ProxyLoss`.
        temperature: positive. Default 1/9: published implementations scale both vectors to norm 3, which
            makes the squared distances 9 times as large. 1 is the formula of the paper.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes]`.

    Every row counts, even one without another row of its class in the batch. With one class there is no
    other proxy: the loss is 0, without gradient.

    Reference: Movshovitz-Attias et al., No Fuss Distance Metric Learning using Proxies, ICCV 2017,
    arXiv 1703.07464, with one proxy for each class; as eq. 5 of arXiv 1903.03238. Memory: about four
    matrices `[batch, classes]`.

    >>> loss = ProxyNCALoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    -1.8
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        temperature: checks.PositiveFloat = 1 / 9,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "proxy_nca",
    ):
        hyper_parameters = {"temperature": temperature}
        super().__init__(
            proxy_nca_loss,
            hyper_parameters,
            labels,
            reduction=reduction,
            ignore_label=ignore_label,
            name=name,
        )
