"""Stanford Online Products: 59,551 images of 11,318 products to train on, 60,502 of 11,316 to test on.

The config itself: tfrank/configs/sop.py
"""

from tfrank.configs.sop import get_config  # noqa: F401
