"""Nearest neighbours: exact, by ScaNN, in shards."""
