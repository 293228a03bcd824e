"""ArcFace (Deng et al., CVPR 2019, arXiv 1801.07698)."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Annotated

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.tails import class_entropy
from tfrank.losses.proxies.proxy_loss import ProxyLoss


def with_angular_margin(cosines: tf.Tensor, margin: float) -> tf.Tensor:
    """Returns cos(theta + m) for each cos(theta), or cos(theta) - m sin(m) if theta + m > pi.

    The slope of cos(theta + m) is infinite at theta = 0. If |cos(theta)| is 1, or above by rounding,
    sin(theta) is therefore 0 with slope 0.
    """
    inside = tf.abs(cosines) < 1
    # `where` differentiates both branches, so take the root of 1 for the entries outside.
    squares = tf.where(inside, (1 - cosines) * (1 + cosines), tf.ones_like(cosines))
    sines = tf.where(inside, tf.sqrt(squares), tf.zeros_like(cosines))
    moved = cosines * math.cos(margin) - sines * math.sin(margin)
    return tf.where(cosines < -math.cos(margin), cosines - margin * math.sin(margin), moved)


def arc_face_loss(
    cosines: tf.Tensor,
    class_index: tf.Tensor,
    *,
    scale: float,
    margin: float,
    proxies_per_class: int,
) -> tf.Tensor:
    """The loss of each row, `[batch]`.

    Implements the formula of `ArcFaceLoss`.

    Args:
        cosines: `[batch, classes x proxies_per_class]` float, with adjacent columns for a class.
        class_index: `[batch]` int32, the index of each row's class.
        scale: positive.
        margin: radians, 0 to pi/2.
        proxies_per_class: at least 1.
    """
    if proxies_per_class > 1:
        by_class = tf.reshape(cosines, [-1, cosines.shape[1] // proxies_per_class, proxies_per_class])
        cosines = tf.reduce_max(by_class, axis=2)
    own = tf.one_hot(class_index, cosines.shape[1], on_value=True, off_value=False)
    own_cosine = tf.reduce_sum(tf.where(own, cosines, tf.zeros_like(cosines)), axis=1, keepdims=True)
    logits = scale * tf.where(own, with_angular_margin(own_cosine, margin), cosines)
    return class_entropy(logits, class_index)


@keras.saving.register_keras_serializable("tfrank")
class ArcFaceLoss(ProxyLoss):
    """Softmax classification by angles, in which an embedding must be closer to its proxy by a margin.

        theta_z = arccos(c_z), between embedding and the proxy of class z                   (0 to pi)
        a       = cos(theta_y + margin)                     where theta_y + margin <= pi
                  cos(theta_y) - margin sin(margin)         beyond
        L_q     = -log(exp(scale a) / (exp(scale a) + sum over classes z != y of exp(scale c_z)))  (eq. 3)

    with y the embedding's class. With several proxies for each class (sub-centers, for noisy or varied
    classes), c_z is the largest of their cosines. The second line is that of the authors' MXNet code.
    With it, a decreases with theta_y everywhere (by a jump where the second line begins). Their PyTorch code
    has the first line everywhere, and takes da/dc_y as 1. Here the gradient is exact, except at theta_y = 0,
    where that of sin(theta_y) is set to 0.

    Args:
        labels: the training labels, see `ProxyLoss`.
        scale: positive; the paper's s. Default 64.
        margin: radians, 0 to pi/2; the paper's m. Default 0.5.
        proxies_per_class: at least 1; K of sub-center ArcFace, 3 in its paper. Default 1.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `ProxyLoss`.
        ignore_label: label of rows without a class, see `ProxyLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats from the layer that
    `proxies()` makes. Without such a layer: cosines `[batch, classes x proxies_per_class]`.

    Every row counts, even one without another row of its class in the batch. With one class the loss is 0.

    Reference: Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019,
    arXiv 1801.07698; defaults are the paper's. Sub-centers: Deng et al., Sub-center ArcFace, ECCV 2020.
    Memory: about four matrices `[batch, classes x proxies_per_class]`.

    >>> loss = ArcFaceLoss(labels=[3, 7])
    >>> round(float(loss([7, 3], [[0.1, 0.2], [0.1, 0.0]])), 4)
    25.0716
    """

    @checks.arguments
    def __init__(
        self,
        labels: Iterable[int],
        *,
        scale: checks.PositiveFloat = 64.0,
        margin: Annotated[float, partial(checks.number, at_least=0, at_most=math.pi / 2)] = 0.5,
        proxies_per_class: checks.PositiveInt = 1,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "arc_face",
    ):
        hyper_parameters = dict(scale=scale, margin=margin, proxies_per_class=proxies_per_class)
        super().__init__(
            arc_face_loss, hyper_parameters, labels, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.proxies_per_class = int(hyper_parameters["proxies_per_class"])
