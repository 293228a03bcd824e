"""Stanford Online Products with vision transformers.

The config itself: tfrank/configs/vit_sop.py
"""

from tfrank.configs.vit_sop import get_config  # noqa: F401
