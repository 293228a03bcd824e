"""Landmarks-clean, 42,410 images of 586 landmarks, to train on; ROxford5k and RParis6k to test on.

Fields, published numbers and sources: tfrank/configs/landmarks.py.
"""

from tfrank.configs.landmarks import get_config  # noqa: F401
