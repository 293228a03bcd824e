"""In-shop Clothes: 25,882 images of 3,997 items to train on; 14,218 queries in 12,612 images of 3,985 others.

The config itself: tfrank/configs/in_shop.py
"""

from tfrank.configs.in_shop import get_config  # noqa: F401
