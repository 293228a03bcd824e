"""The fields of a run, and a config for each data set."""
