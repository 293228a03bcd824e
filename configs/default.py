"""Every field of a run: its default, its meaning and its unit.

Fields, published numbers and sources: tfrank/configs/default.py.
"""

from tfrank.configs.default import *  # noqa: F403
