"""Handwritten characters of alphabets never seen in training (Omniglot, Lake et al., 2015).

The config itself: tfrank/configs/omniglot.py
"""

from tfrank.configs.omniglot import get_config  # noqa: F401
