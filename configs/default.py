"""Every field of a run: its default, its meaning and its unit.

The config itself: tfrank/configs/default.py
"""

from tfrank.configs.default import *  # noqa: F403
