"""Data loading. `balanced_batches` is for users of Keras' `fit`; import everything else from its module."""

from tfrank.data.batches import balanced_batches

__all__ = ["balanced_batches"]
