"""VGGFace2: 3.31 million faces of 8,631 people to train on, 169,396 of 500 others to test on.

The config itself: tfrank/configs/vgg_face2.py
"""

from tfrank.configs.vgg_face2 import get_config  # noqa: F401
