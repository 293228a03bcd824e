"""Data: what a user of `fit` takes from here; the modules have the rest."""

from tfrank.data.batches import balanced_batches

__all__ = ["balanced_batches"]
