"""Asymmetric metric learning (Budnik and Avrithis, CVPR 2021, arXiv 2006.16331)."""

from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.loss_around import LossAround
from tfrank.losses.core.ranking_loss import RankingLoss


@keras.saving.register_keras_serializable("tfrank")
class AsymmetricLoss(LossAround):
    """Ranks the embeddings of one model, as queries, against those of another model, as gallery.

        loss = sum_q w_q L(x_q; y_1, ..., y_n) / sum_q w_q        over the valid queries q

    L is a ranking loss, x_q the embedding of image q by the model that learns, and y_1, ..., y_n those of all
    images of the batch by the other model, which are constants. A small network so learns to search in the
    index of a large one, its teacher, and a new model in the index of an older one.

    Args:
        loss: a `RankingLoss`. With a `CrossBatchMemory` the gallery also has the other model's embeddings of
            past batches, which never go out of date.
        include_self: whether the query's own image, by the other model, is one of its positives. If so, an
            image without another of its class is a valid query, and images without classes can be learnt
            from: give each a label of its own.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, 2 dim]` floats: those of the model
    that learns, then those of the other, side by side as `keras.layers.Concatenate` puts them. `against`
    takes them apart.

    Raises:
        InputError: the number of columns is odd, or `against` gets embeddings of two dimensions.

    Reference: Budnik and Avrithis, Asymmetric Metric Learning for Knowledge Transfer, CVPR 2021, arXiv
    2006.16331. Memory and time: those of `loss`.

    >>> from tfrank import PNPLoss
    >>> queries = [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]]
    >>> gallery = [[0.9, 0.2], [0.2, 0.9], [0.9, 0.1], [0.1, 0.9]]
    >>> loss = AsymmetricLoss(PNPLoss("dq"))
    >>> round(float(loss([0, 1, 0, 1], tf.concat([queries, gallery], axis=1))), 4)
    0.4938
    """

    def __init__(self, loss: RankingLoss, *, include_self: bool = True, name: str = "asymmetric"):
        # A `MatryoshkaLoss` may have proxies inside.
        ranks = isinstance(loss, RankingLoss) and isinstance(getattr(loss, "loss", loss), RankingLoss)
        if not ranks or isinstance(loss, AsymmetricLoss):
            expected = "a RankingLoss (of a WeightedSum, wrap each part)"
            raise checks.invalid("loss", expected, loss)
        self.loss, self.include_self = loss, checks.boolean("include_self", include_self)
        super().__init__(loss._score, {}, reduction=loss.reduction, ignore_label=loss.ignore_label, name=name)

    def against(
        self,
        labels: tf.Tensor,
        embeddings: tf.Tensor,
        others: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The loss of embeddings `[batch, dim]` against those of the other model, `[batch, dim]`."""
        if embeddings.shape[1] != others.shape[1]:
            expected = f"{embeddings.shape[1]} dimensions, as those of the queries"
            raise checks.invalid("others", expected, str(others.shape))
        dtype = tf.float64 if embeddings.dtype == tf.float64 else tf.float32
        both = [tf.cast(rows, dtype) for rows in (embeddings, others)]
        return self(labels, tf.concat(both, axis=1), sample_weight)

    def _scored(self, labels, embeddings, weights):
        """L_q and w_q of the queries of this replica, `[batch]` each, against the gallery of all replicas."""
        if embeddings.shape[1] is not None and embeddings.shape[1] % 2:
            raise checks.invalid("embeddings", "an even number of columns", str(embeddings.shape))
        queries, gallery = tf.split(embeddings, 2, axis=1)
        if self.loss.normalize:
            queries, gallery = l2_normalize(queries), l2_normalize(gallery)
        own_row = distributed.first_row(labels) + tf.range(tf.size(labels))
        losses, valid = self.loss._score(
            labels,
            queries,
            distributed.gather_rows(labels),
            tf.stop_gradient(distributed.gather_rows(gallery)),
            -1 - own_row if self.include_self else own_row,
        )
        return losses, self.weigh(labels, valid, weights)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "loss": keras.losses.serialize(self.loss),
            "include_self": self.include_self,
            "name": self.name,
        }
