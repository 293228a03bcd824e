"""Two replicas give the loss and the update of one device; the cases stand in `replica_cases.py`."""

import functools
import re

import numpy as np
import pytest

from tests.losses.replica_cases import CASES, CHANGING, QUICK
from tests.programs import printed_json

# float32 as promised. In bfloat16 each replica rounds its part of the gradient to 8 bits, and the
# parts may be a few times their sum.
UPDATE_TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 2**-6}


@functools.cache
def results(which):
    """What cases gave, by one program with the one strategy a process may hold."""
    return printed_json("-m", "tests.losses.replica_cases", which)


def result(case):
    found = results("quick" if case in QUICK else "others")[str(case)]
    assert "error" not in found
    return found


def marked(cases):
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] * (case not in QUICK)) for case in cases
    ]


@pytest.mark.parametrize("case", marked(CASES))
def test_two_replicas_give_the_loss_and_the_update_of_one_device(case):
    one, two = result(case)["one device"], result(case)["two replicas"]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-5, atol=1e-9)
    tolerance = UPDATE_TOLERANCE[case.policy] * np.abs(one["update"]).max()
    np.testing.assert_allclose(two["update"], one["update"], rtol=0, atol=tolerance)
    # There has to be a loss to compare, unless no query is valid (in the second step all have a positive in a
    # memory),
    has_loss = case.batch != "no valid query" or case.loss == "memory"
    assert np.any(one["loss"]) == np.any(one["update"]) == has_loss
    # and the second step, from the same weights, is another one for a loss that changes with the step.
    differs = not np.allclose(*one["loss"], rtol=1e-3)
    assert differs == (has_loss and case.loss in CHANGING)


@pytest.mark.parametrize("case", marked(case for case in CASES if case.way == "fit"))
def test_fit_logs_the_loss_of_the_step(case):
    step, fit = result(case._replace(way="step")), result(case)
    np.testing.assert_allclose(fit["two replicas"]["loss"], step["one device"]["loss"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, expected_text",
    [
        ("xla", r"InputError: XLA cannot compile a training step of several .* with jit_compile=False\."),
        ("last", r"A batch has fewer rows than there are replicas, 2\. Make .*drop_remainder=True"),
    ],
)
def test_what_several_replicas_cannot_do_is_refused_in_a_sentence(case, expected_text):
    message = printed_json("-m", "tests.losses.refused_replicas", case)
    assert re.search(expected_text, message)
