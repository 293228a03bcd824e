"""Cases of which the quick tests have a few, and CI all."""

import pytest


def slow(*values):
    """A case of `pytest.mark.parametrize` that only CI tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(few, values):
    """All of the cases; only CI tests those that are not among the few."""
    return [value if value in few else slow(value) for value in values]
