"""CARS196 with vision transformers.

The config itself: tfrank/configs/vit_cars.py
"""

from tfrank.configs.vit_cars import get_config  # noqa: F401
