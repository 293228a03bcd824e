"""Helpers that every other folder may import; this folder imports none of them."""
