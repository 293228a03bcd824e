"""Supervised contrastive loss for images of several labels (after MulSupCon, Zhang and Wu, AAAI 2024)."""

from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core import scalars
from tfrank.losses.core.first_order import first_derivative
from tfrank.losses.core.known_labels import required
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.pairs import similarities
from tfrank.losses.core.ranking_loss import checked_batch, global_mean
from tfrank.losses.core.scalars import Positive
from tfrank.losses.core.tails import shared_entropy


@keras.saving.register_keras_serializable("tfrank")
class MultiLabelSupConLoss(Loss):
    """Softmax over the batch, in which each label of a query shares the right answer among its images.

        L_qc = -1/|P_qc| sum over p in P_qc of log(exp(s_p / t) / sum over j of exp(s_j / t))
        loss = sum over queries q and their labels c of w_q L_qc / sum of w_q

    P_qc are the other images with label c, and j runs over all images of the batch but the query. A label
    that no other image of the batch has is left out. So an image that shares two labels with the query counts
    more than one that shares one. With one label for each image this is `SupConLoss`.

    Args:
        temperature: t, positive. Default 0.1.
        reduction: "mean"; "sum" over queries and labels; "sum_over_batch_size", that sum divided by the rows
            of the global batch; None for `[batch]` sums over the labels.
        name: name of the loss.

    Called as `loss(labels, embeddings, sample_weight=None)`:
        labels: `[batch, classes]` of any numeric dtype or bool, 1 for each label of the image, else 0.
        embeddings: `[batch, dim]`, any float dtype and norm; they are L2-normalised.
        sample_weight: `[batch]` or `[batch, 1]` w_q, finite, at least 0; 1 if None.

    An image that shares no label has no loss. Labels other than 0 and 1 raise InputError, or TensorFlow's
    InvalidArgumentError inside a graph; XLA (`jit_compile`) leaves such checks out. N replicas equal one
    device, as for `RankingLoss`.

    Reference: Zhang and Wu, Multi-Label Supervised Contrastive Learning, AAAI 2024; Khosla et al., NeurIPS
    2020, arXiv 2004.11362 (eq. 2). Memory: about five matrices `[batch, batch]`.

    >>> tags = [[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]]
    >>> loss = MultiLabelSupConLoss()
    >>> round(float(loss(tags, [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    7.7305
    """

    @checks.arguments
    def __init__(
        self,
        temperature: Positive = 0.1,
        *,
        reduction: str | None = "mean",
        name: str = "multi_label_sup_con",
    ):
        super().__init__(reduction=reduction, name=name)
        self.temperature = temperature

    # Overrides `__call__`, not `call`; see `RankingLoss`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        with tf.name_scope(self.name):
            labels = _checked_labels(y_true)
            no_labels = tf.zeros_like(labels[:, 0], tf.int64)
            _, embeddings, weights = checked_batch(no_labels, y_pred, sample_weight)
            queries, labels = l2_normalize(embeddings), tf.cast(labels, embeddings.dtype)
            own_row = distributed.first_row(labels) + tf.range(tf.shape(labels)[0])
            targets, shared = _targets(labels, distributed.gather_rows(labels), own_row)
            gallery = distributed.gather_rows(queries)
            s = similarities(queries, gallery) / scalars.tensor(self.temperature, queries.dtype)
            others = own_row[:, None] != tf.range(tf.shape(gallery)[0])
            losses = _entropy(s, targets, others)
            return global_mean(losses, weights * shared, self.reduction)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor; a variable gives its current value."""
        return {**super().get_config(), "temperature": scalars.current(self.temperature)}


def _entropy(exponents, targets, candidates):
    """`shared_entropy` with its gradient; 0 for rows without a target."""

    @tf.custom_gradient
    def entropy(exponents):
        losses, slopes = shared_entropy(tf.stop_gradient(exponents), targets, candidates)
        answered = tf.reduce_any(targets > 0, axis=1)
        slopes = tf.where(answered[:, None], slopes, tf.zeros_like(slopes))
        # Add 0 x exponents, as `where` would hide a NaN.
        losses = tf.where(answered, losses, tf.zeros_like(losses)) + 0 * tf.reduce_sum(exponents)
        return losses, lambda upstream: first_derivative(upstream[:, None] * slopes, exponents)

    return entropy(exponents)


def _targets(labels, gallery_labels, own_row):
    """How much of each query's answer each image has, `[queries, gallery]`; and `[queries]` its labels in P.

    A row of targets sums to 1, or is 0 if the image shares no label.
    """
    others = tf.reduce_sum(gallery_labels, axis=0) - 1
    has_others = tf.cast(others > 0, labels.dtype)
    shared = tf.reduce_sum(labels * has_others, axis=1)
    shares = labels * has_others / tf.maximum(others, 1)
    targets = tf.matmul(shares, gallery_labels, transpose_b=True)
    own = own_row[:, None] == tf.range(tf.shape(gallery_labels)[0])
    return tf.where(own, tf.zeros_like(targets), targets) / tf.maximum(shared, 1)[:, None], shared


def _checked_labels(labels):
    """The labels, `[batch, classes]`, if all are 0 or 1."""
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank != 2:
        expected = "shape [batch, classes], 1 for each label of the image, else 0"
        raise checks.invalid("labels", expected, str(labels.shape))
    labels = tf.cast(labels, tf.float32)
    wrong = tf.where((labels == 0) | (labels == 1), 0.0, labels)
    worst = tf.gather(tf.reshape(wrong, [-1]), tf.argmax(tf.abs(tf.reshape(wrong, [-1]))))
    with tf.control_dependencies(required(tf.reduce_all(wrong == 0), "labels", "only 0 and 1", worst)):
        return tf.stop_gradient(tf.identity(labels))
