"""PKU VehicleID: the training list's images to train on, and three growing test sets of other vehicles.

The config itself: tfrank/configs/vehicle_id.py
"""

from tfrank.configs.vehicle_id import get_config  # noqa: F401
