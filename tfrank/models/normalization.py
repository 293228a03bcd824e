"""Batch norm that stays frozen, or its statistics do, and the other normalisation layers of the models."""

import keras
from keras import layers, ops

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize

MODES = ("frozen", "statistics", "trained")


@keras.saving.register_keras_serializable("tfrank")
class FrozenBatchNormalization(layers.BatchNormalization):
    """Batch norm in inference mode, always: x -> gamma (x - mean) / sqrt(variance + epsilon) + beta.

    Gamma, beta and the statistics never change, even with `training=True` or after `model.trainable = True`,
    which would unfreeze a plain batch norm. A network pretrained with large batches therefore keeps its
    statistics when it is trained with small batches or on one class after another. An embedding does not
    depend on the rest of its batch.

    The layer only has to be never trainable: Keras then uses the stored statistics and does not update them.
    """

    @property
    def trainable(self) -> bool:
        """Always False; setting it has no effect."""
        return False

    @trainable.setter
    def trainable(self, value):
        layers.Layer.trainable.fset(self, False)


@keras.saving.register_keras_serializable("tfrank")
class FrozenStatisticsBatchNormalization(layers.BatchNormalization):
    """Batch norm by the stored statistics, which never change; gamma and beta are trained.

    It is `module.eval()` of PyTorch's batch norm.
    """

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=False, mask=mask)


@keras.saving.register_keras_serializable("tfrank")
class FrozenNormalization(layers.Normalization):
    """The first layer of Keras' EfficientNets: (x - mean) / sqrt(variance), divided by `sqrt(deviation)`.

    Keras adds the last division as a separate layer, but only if Keras itself loads the ImageNet weights.
    Keras also keeps mean and variance as constants, which restoring a checkpoint later would not change.
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
    """L2-normalises rows, as losses and export do: `[batch, dim]` to `[batch, dim]`."""

    def call(self, inputs):
        return l2_normalize(inputs)


def batch_norm(mode: str, **options) -> layers.Layer:
    """The batch norm of tfrank's networks: PyTorch's defaults (momentum 0.9 in Keras' sense, epsilon 1e-5).

    Args:
        mode: "frozen"; "statistics", which alone are frozen; or "trained", with statistics over the global
            batch, so that several replicas compute what one device does.
        **options: options of the Keras layer, such as its name.
    """
    checks.one_of("batch_norm", mode, MODES)
    options = {"momentum": 0.9, "epsilon": 1e-5, **options}
    if mode == "trained":
        return layers.BatchNormalization(synchronized=True, **options)
    kind = FrozenBatchNormalization if mode == "frozen" else FrozenStatisticsBatchNormalization
    return kind(**options)
