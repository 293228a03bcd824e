"""Multi-stage backpropagation for Keras' own `compile` and `fit`."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.training.step import check_combination, compiled, multi_stage_gradients, of_global_batch, rows_of


@keras.saving.register_keras_serializable("tfrank")
class MultiStageModel(keras.Model):
    """A model that `fit` trains with a large batch in the memory of a small one.

    Each batch is embedded in micro-batches, the loss sees all embeddings, and each micro-batch is embedded
    again for its part of the gradient. The resulting weights are those of training with the whole batch at
    once (Revaud et al., arXiv 1906.07589, section 3.3; see `tfrank.training.step`). Batch norm in training
    mode normalises each micro-batch by itself.

    This saves the memory of activations, not of images: `fit` holds the batch's image tensor on the device.
    It takes batch x height x width x 3 bytes as uint8 (a batch of 4,096 at 224x224: 617 MB), four times that
    as float32. Give uint8 images, which a model that begins with `keras.Input` casts, micro-batch by
    micro-batch; `train_main.py` leaves them on the host.

    Args:
        model: a built model. It may take what Keras' `fit` gives a model, one tensor, a dict or a list of
            several, of any dtype; they reach it unchanged. One output, or several with a loss each.
        micro_batch_size: images embedded at once, at least 1; the last micro-batch may be smaller.

    Raises:
        InputError: an argument is invalid; or, in `fit`, a layer adds a loss of its activations, or a batch
            norm in training mode synchronises its statistics between devices.

    With `compile(jit_compile=True)`, XLA compiles the inner model but not the loop over micro-batches.

    >>> import tfrank
    >>> inside = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    >>> model = MultiStageModel(inside, micro_batch_size=16)
    >>> model.compile("adam", loss=tfrank.PNPLoss("dq"))
    >>> images, labels = tf.random.stateless_normal([64, 8], [0, 1]), tf.range(64) // 4
    >>> history = model.fit(images, labels, batch_size=64, verbose=0)
    """

    def __init__(self, model: keras.Model, *, micro_batch_size: int, **options: Any):
        # The model inside casts what it takes by itself.
        super().__init__(autocast=False, **options)
        if not model.built:
            raise checks.invalid("model", "a built one (call it once; a Sequential begins with Input)", model)
        self.model, self.built = model, True
        self.micro_batch_size = checks.integer("micro_batch_size", micro_batch_size, at_least=1)
        if hasattr(model, "output_names"):
            self.output_names = model.output_names
        self._embed: Callable[[Any], Any] | None = None

    def compile(self, *args: Any, jit_compile: str | bool = "auto", **options: Any) -> None:
        """Compiles the model; takes the arguments of Keras' `compile`."""
        super().compile(*args, jit_compile=False, **options)
        self._embed = None
        if jit_compile is True:
            self._embed = compiled(self._embed_in_training)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of `compile`, for saving."""
        return {**super().get_compile_config(), "jit_compile": self._embed is not None or "auto"}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model with its saved arguments."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def _embed_in_training(self, inputs):
        return self.model(inputs, training=True)

    def call(self, inputs, training=None):
        """Returns the embeddings of what the model inside takes."""
        return self.model(inputs, training=training)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes one multi-stage step on a batch."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        check_combination(self.model, replicas, self.micro_batch_size)

        def objective(embeddings, _):
            # Keras adds the losses of weight regularisers itself.
            loss = self.compute_loss(inputs, labels, embeddings, weights, training=True)
            return loss, self.optimizer.scale_loss(loss)

        value, embeddings, gradients = multi_stage_gradients(
            self.model, inputs, objective, self.micro_batch_size, self._embed
        )
        gradients = of_global_batch(gradients, self.optimizer, replicas)
        if gradients:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        else:
            warnings.warn("The model does not have any trainable weights.", UserWarning, stacklevel=2)
        for metric in self.metrics:
            if metric.name == "loss":
                # Keras logs the mean over replicas, but their losses must be summed.
                metric.update_state(value * replicas, sample_weight=rows_of(inputs))
        return self.compute_metrics(inputs, labels, embeddings, sample_weight=weights)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "micro_batch_size": self.micro_batch_size,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiStageModel":
        """Returns the model described by the result of `get_config`."""
        return cls(keras.saving.deserialize_keras_object(config.pop("model")), **config)
