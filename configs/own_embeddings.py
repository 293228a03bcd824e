"""Your own embeddings: trains a head on vectors that another model has computed, in a minute.

The config itself: tfrank/configs/own_embeddings.py
"""

from tfrank.configs.own_embeddings import get_config  # noqa: F401
