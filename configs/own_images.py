"""Your own photos: better than the network they begin with, on a laptop without a GPU.

The config itself: tfrank/configs/own_images.py
"""

from tfrank.configs.own_images import get_config  # noqa: F401
