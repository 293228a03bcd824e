"""Your own TFRecords, made elsewhere: shards of `tf.train.Example` with an image and an integer class.

The config itself: tfrank/configs/own_records.py
"""

from tfrank.configs.own_records import get_config  # noqa: F401
