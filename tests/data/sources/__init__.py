"""Tests of the data sets, each in its official layout."""
