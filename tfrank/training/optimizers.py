"""The optimizer."""

import keras

from tfrank import checks


def build_optimizer(*, learning_rate: float, decoupled: float = 0.0) -> keras.optimizers.Optimizer:
    """Adam (epsilon 1e-8, as in PyTorch), with decoupled weight decay if that is above 0."""
    return keras.optimizers.Adam(
        checks.number("learning_rate", learning_rate, above=0),
        epsilon=1e-8,
        weight_decay=checks.number("decoupled", decoupled, at_least=0) or None,
    )
