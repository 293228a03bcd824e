"""CUB-200-2011, birds: 5,864 images of the first 100 species to train on, 5,924 of the other 100 to test on.

The config itself: tfrank/configs/cub.py
"""

from tfrank.configs.cub import get_config  # noqa: F401
