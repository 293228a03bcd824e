"""CosFace (Wang et al., CVPR 2018, arXiv 1801.09414)."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.tails import class_entropy
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def cos_face_loss(cosines: tf.Tensor, class_index: tf.Tensor, *, scale: float, margin: float) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `CosFaceLoss`.

    Args:
        cosines: `[batch, proxies]` float.
        class_index: `[batch]` int32, the column of the proxy of each row's class.
        scale: positive.
        margin: cosine, 0 to 2.
    """
    own = tf.one_hot(class_index, cosines.shape[1], dtype=cosines.dtype)
    return class_entropy(scale * (cosines - margin * own), class_index)


@keras.saving.register_keras_serializable("tfrank")
class CosFaceLoss(ProxyLoss):
    """Softmax classification by cosines, of which an embedding's own must be larger by a margin.

        a   = c_y - margin
        L_q = -log(exp(scale a) / (exp(scale a) + sum over classes z != y of exp(scale c_z)))      (eq. 4)

    with c_z the cosine of the embedding with the proxy of class z, and y the embedding's class.

    Args:
        labels: the training labels, see `ProxyLoss`.
        scale: positive; the paper's s. Default 64.
        margin: cosine, 0 to 2; the paper's m. Default 0.35.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes]`.

    Every row counts, even one without another row of its class in the batch. With one class the loss is 0.

    Reference: Wang et al., CosFace: Large Margin Cosine Loss for Deep Face Recognition, CVPR 2018,
    arXiv 1801.09414; defaults are the paper's. Memory: about three matrices `[batch, classes]`.

    >>> loss = CosFaceLoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    16.0
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        scale: checks.PositiveFloat = 64.0,
        margin: Annotated[float, partial(checks.number, at_least=0, at_most=2)] = 0.35,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "cos_face",
    ):
        hyper_parameters = dict(scale=scale, margin=margin)
        super().__init__(
            cos_face_loss, hyper_parameters, labels, reduction=reduction, ignore_label=ignore_label, name=name
        )
