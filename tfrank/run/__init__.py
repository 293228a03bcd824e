"""Runs from the command line to the report: everything that reads a config."""
