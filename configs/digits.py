"""The first run: scikit-learn's handwritten digits, trained on 0-4, tested on 5-9, which it never saw.

The config itself: tfrank/configs/digits.py
"""

from tfrank.configs.digits import get_config  # noqa: F401
