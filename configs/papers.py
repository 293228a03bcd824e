"""What the papers' experiments share; a data set's config adds its own.

The config itself: tfrank/configs/papers.py
"""

from tfrank.configs.papers import *  # noqa: F403
