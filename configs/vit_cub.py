"""CUB-200-2011 with vision transformers.

The config itself: tfrank/configs/vit_cub.py
"""

from tfrank.configs.vit_cub import get_config  # noqa: F401
