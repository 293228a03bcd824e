"""INaturalist 2018 in Smooth-AP's split: 325,846 images of 5,690 species to train, 136,093 of 2,452 to test.

The config itself: tfrank/configs/inaturalist.py
"""

from tfrank.configs.inaturalist import get_config  # noqa: F401
