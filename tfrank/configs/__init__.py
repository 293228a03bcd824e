"""Default fields of a run, and one config for each data set."""
