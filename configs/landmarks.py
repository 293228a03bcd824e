"""Landmarks-clean, 42,410 images of 586 landmarks, to train on; ROxford5k and RParis6k to test on.

The config itself: tfrank/configs/landmarks.py
"""

from tfrank.configs.landmarks import get_config  # noqa: F401
