"""What a check of an argument refuses, from the check itself: no such type, and numbers beyond its bounds."""

import functools

import numpy as np

from tfrank.common import checks

NO_NUMBER = [float("nan"), float("inf"), "4", True, None, [1.0]]


def bad_values(check):
    """Some values that `check`, one of `checks.checks_of`, has to refuse."""
    function, bounds = getattr(check, "func", check), dict(getattr(check, "keywords", {}))
    if function is checks.boolean:
        return ["no", None, 2]
    if function is checks.one_of:
        return ["other", None, 4, *(str(value).swapcase() for value in bounds["allowed"])]
    if function is checks.sequence:
        of_items = functools.partial(bounds.pop("check"), **bounds)
        return [[], 5, "12345", None, *([value] for value in bad_values(of_items))]
    if function is checks.integer:
        return [*NO_NUMBER, 2.0, bounds["at_least"] - 1, 2**63]
    beyond = {"above": 0, "at_least": -np.inf, "at_most": np.inf, "below": 0}
    return NO_NUMBER + [
        float(np.nextafter(bound, beyond[name])) if beyond[name] else bound for name, bound in bounds.items()
    ]
