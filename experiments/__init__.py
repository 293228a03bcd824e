"""Experiments of the papers and comparisons of losses: `python -m experiments.NAME`.

Each writes its tables and figures to docs/experiments, where a page says what the paper says and what is seen
here. A run that is in a table is not run again, so an experiment that was stopped goes on where it was.
"""
