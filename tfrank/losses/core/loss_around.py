"""The base of losses that apply another loss, and change what it sees."""

from typing import Any, Self

import keras
import tensorflow as tf

from tfrank.losses.core.ranking_loss import RankingLoss


class LossAround(RankingLoss):
    """A loss that applies another one, its attribute `loss`: state, weights and config are of that one.

    Which queries are valid, and their weights, are those of the inner loss.
    """

    loss: Any

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of the inner loss."""
        return self.loss.variables

    @property
    def iteration(self) -> tf.Variable | keras.Variable | None:
        """The `iteration` of the inner loss, see `RankingLoss`."""
        return self.loss.iteration

    @iteration.setter
    def iteration(self, variable: tf.Variable | keras.Variable | None) -> None:
        self.loss.iteration = variable

    def look_at(self, embeddings: tf.Tensor) -> None:
        """Lets the inner loss look at the embeddings, see `RankingLoss`."""
        self.loss.look_at(embeddings)

    def weigh(self, labels: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """w_q of this replica's queries, from the inner loss."""
        return self.loss.weigh(labels, valid, weights)

    def _shown_arguments(self):
        return {**super()._shown_arguments(), "loss": repr(self.loss)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the loss from its `get_config`."""
        return cls(**(config | {"loss": keras.losses.deserialize(config["loss"])}))
