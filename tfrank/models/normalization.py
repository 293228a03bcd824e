"""Batch norm that stays frozen, and the other normalisations of the models."""

import keras
from keras import layers, ops

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize

MODES = ("frozen", "trained")


@keras.saving.register_keras_serializable("tfrank")
class FrozenBatchNormalization(layers.BatchNormalization):
    """Batch norm as at evaluation, for good: x -> gamma (x - mean) / sqrt(variance + epsilon) + beta.

    Neither gamma and beta nor the statistics move: not with `training=True`, and not after
    `model.trainable = True`, which sets every layer within and would thaw a plain batch norm. A network
    pretrained with large batches, then trained with small ones or on one class after another, keeps its
    statistics, and an embedding does not depend on the rest of its batch.

    Keras itself uses and keeps the statistics of a batch norm that is not trainable.
    """

    @property
    def trainable(self) -> bool:
        """False, whatever it is set to."""
        return False

    @trainable.setter
    def trainable(self, value):
        layers.Layer.trainable.fset(self, False)


@keras.saving.register_keras_serializable("tfrank")
class FrozenNormalization(layers.Normalization):
    """The first layer of Keras' EfficientNets: (x - mean) / sqrt(variance), divided by `sqrt(deviation)`.

    Keras adds that last division as a layer of its own, but only where it loads its ImageNet weights itself.
    And it keeps mean and variance as constants, which a checkpoint that is restored later would not reach.
    """

    def __init__(self, deviation=(0.229, 0.224, 0.225), **kwargs):
        super().__init__(**kwargs)
        self.deviation = tuple(deviation)

    def call(self, inputs):
        mean, variance = (ops.cast(v, self.compute_dtype) for v in (self.adapt_mean, self.adapt_variance))
        deviation = ops.convert_to_tensor(self.deviation, self.compute_dtype)
        return (inputs - mean) / ops.sqrt(variance * deviation)

    def get_config(self):
        return {**super().get_config(), "deviation": self.deviation}


@keras.saving.register_keras_serializable("tfrank")
class UnitNorm(layers.Layer):
    """Rows of norm 1, as losses and export make them: `[batch, dim]` to `[batch, dim]`."""

    def call(self, inputs):
        return l2_normalize(inputs)


def batch_norm(mode: str, **options) -> layers.Layer:
    """The batch norm of the house: PyTorch's defaults (momentum 0.9 in Keras' sense, epsilon 1e-5).

    Args:
        mode: "frozen", or "trained": over the global batch, so that several replicas compute what one does.
        **options: of the Keras layer, such as its name.
    """
    checks.one_of("batch_norm", mode, MODES)
    options = {"momentum": 0.9, "epsilon": 1e-5, **options}
    if mode == "frozen":
        return FrozenBatchNormalization(**options)
    return layers.BatchNormalization(synchronized=True, **options)
