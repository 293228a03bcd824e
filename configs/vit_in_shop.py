"""In-shop Clothes with vision transformers.

The config itself: tfrank/configs/vit_in_shop.py
"""

from tfrank.configs.vit_in_shop import get_config  # noqa: F401
