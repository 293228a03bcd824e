"""TargetLoss: the base of losses that compare embeddings with those of another model, the targets."""

from collections.abc import Callable

import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core.loss import Loss
from tfrank.losses.core.ranking_loss import checked_batch, global_mean


class TargetLoss(Loss):
    """A loss of embeddings and of the targets, another model's embeddings of the same images.

    Called as `loss(targets, embeddings, sample_weight=None)`. Both are normalised first. There are no labels,
    so images without classes can be learnt from. The batch is that of all replicas together, and replicas
    and reductions are as for `RankingLoss`.

    Args:
        core: f(embeddings, targets), of `[batch, dim]` rows of unit norm; returns the loss of each image.
        reduction: see `RankingLoss`.
        name: name of the loss.
    """

    def __init__(
        self, core: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], *, reduction: str | None, name: str
    ):
        super().__init__(reduction=reduction, name=name)
        self._core = core

    def against(
        self,
        labels: tf.Tensor,
        embeddings: tf.Tensor,
        others: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The loss with the targets `others`; takes the arguments of `AsymmetricLoss.against`."""
        return self(others, embeddings, sample_weight)

    # Overrides `__call__`, not `call`; see `RankingLoss`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        with tf.name_scope(self.name):
            targets, embeddings = tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred)
            if not targets.dtype.is_floating or targets.shape.rank != 2:
                received = f"{targets.dtype.name} {targets.shape}"
                raise checks.invalid("targets", "floats of shape [batch, dim]", received)
            labels = tf.zeros(tf.shape(embeddings)[:1], tf.int64)
            _, embeddings, weights = checked_batch(labels, embeddings, sample_weight)
            rows = l2_normalize(embeddings), l2_normalize(tf.cast(targets, embeddings.dtype))
            embeddings, targets = map(distributed.gather_rows, rows)
            first = distributed.first_row(labels)
            losses = self._core(embeddings, tf.stop_gradient(targets))[first : first + tf.size(labels)]
            return global_mean(losses, weights, self.reduction)

    def get_config(self) -> dict[str, str | None]:
        """The arguments of the constructor."""
        return {"reduction": self.reduction, "name": self.name}
