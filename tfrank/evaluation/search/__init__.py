"""Nearest-neighbour search: exact, by ScaNN, and in shards."""
