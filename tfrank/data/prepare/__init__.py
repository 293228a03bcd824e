"""Prepares records: writes images to records with an index, and indexes records made elsewhere."""
