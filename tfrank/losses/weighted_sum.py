"""The weighted sum of several losses."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.loss import Loss


@keras.saving.register_keras_serializable("tfrank")
class WeightedSum(Loss):
    """A weighted sum of losses: sum_k weight_k loss_k(labels, embeddings).

    Each part keeps its own rule for valid queries, and its own mean over them.

    Args:
        losses: the parts, at least one loss of this package, all with the same reduction. Of a loss with
            proxies, such as `ArcFaceLoss`, add its `proxies()` as the last layer of the training model; of
            several, one after the other.
        weights: weights of the parts, finite numbers. Default 1 each.
        name: name of the sum.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. The result is a
    scalar, or `[batch]` if the parts have reduction None.

    >>> from tfrank import PNPLoss, SmoothAPLoss
    >>> loss = WeightedSum([PNPLoss("dq"), SmoothAPLoss()], [1.0, 0.5])
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.2542
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        weights: Sequence[float] | None = None,
        *,
        name: str = "weighted_sum",
    ):
        is_list = isinstance(losses, Sequence) and len(losses) > 0
        if not is_list or not all(isinstance(loss, Loss) for loss in losses):
            raise checks.invalid("losses", "a list of at least one loss of tfrank", losses)
        losses = list(losses)
        reductions = {loss.reduction for loss in losses}
        if len(reductions) > 1:
            raise checks.invalid("losses", "losses of one reduction", [loss.reduction for loss in losses])
        weights = [1.0] * len(losses) if weights is None else weights
        self.losses, self.weights = losses, checks.sequence("weights", weights, checks.number)
        if len(self.weights) != len(losses):
            raise checks.invalid("weights", f"one number for each of {len(losses)} losses", weights)
        super().__init__(reduction=reductions.pop(), name=name)

    @property
    def variables(self) -> list[tf.Variable]:
        """The state of the parts to store in checkpoints."""
        return [variable for loss in self.losses for variable in loss.variables]

    @property
    def iteration(self) -> tf.Variable | keras.Variable | None:
        """The variable that counts training steps, see `Loss`; setting it sets it for all parts."""
        return self.losses[0].iteration

    @iteration.setter
    def iteration(self, variable: tf.Variable | keras.Variable | None) -> None:
        for loss in self.losses:
            loss.iteration = variable

    # Overrides `__call__`, not `call`; see `RankingLoss`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        parts = [loss(y_true, y_pred, sample_weight) for loss in self.losses]
        return tf.add_n([weight * part for weight, part in zip(self.weights, parts)])

    def get_config(self) -> dict[str, Any]:
        """The name, the weights and the parts."""
        losses = [keras.losses.serialize(loss) for loss in self.losses]
        return {"losses": losses, "weights": list(self.weights), "name": self.name}

    def _shown_arguments(self):
        return {**super()._shown_arguments(), "losses": repr(self.losses)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WeightedSum":
        """Creates the loss from its `get_config`."""
        losses = [keras.losses.deserialize(loss) for loss in config["losses"]]
        return cls(**(config | {"losses": losses}))
