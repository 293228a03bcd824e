"""CARS196: 8,054 images of the first 98 models to train on, 8,131 of the other 98 to test on.

The config itself: tfrank/configs/cars.py
"""

from tfrank.configs.cars import get_config  # noqa: F401
