"""Argument checks: what passes, what is refused, and what the message says."""

import numpy as np
import pytest

from tfrank.common import checks
from tfrank.common.checks import InputError


def test_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_message_has_the_form_keras_uses():
    assert str(checks.invalid("temperature", "a positive float", -1)) == (
        "Invalid value for argument `temperature`. Expected a positive float. Received: temperature=-1"
    )


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2)])
def test_number_gives_a_float(value):
    result = checks.number("x", value, above=0)
    assert type(result) is float and result == 2


def test_number_may_equal_at_least_but_not_above():
    assert checks.number("x", 1, at_least=1) == 1
    with pytest.raises(InputError, match=r"Expected a finite number above 1\. Received: x=1$"):
        checks.number("x", 1, above=1)
    with pytest.raises(InputError, match=r"a finite number of at least 1\. Received: x=0.5"):
        checks.number("x", 0.5, at_least=1)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), True, np.True_, "1", "one", None, [1], 1j, 10**400],
    ids=lambda value: repr(value)[:9],
)
def test_number_refuses_what_is_no_finite_number(value):
    with pytest.raises(InputError, match=r"argument `x`\. Expected a (finite )?number\. Received: x="):
        checks.number("x", value)


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3)])
def test_integer_gives_an_int(value):
    result = checks.integer("k", value, at_least=3)
    assert type(result) is int and result == 3


@pytest.mark.parametrize("value", [0, -1, True, np.True_, 1.0, "1", None, [1], np.array([1, 2])], ids=repr)
def test_integer_refuses_what_is_no_integer_or_too_small(value):
    with pytest.raises(InputError, match=r"argument `k`\. Expected an integer of at least 1\. Received: k="):
        checks.integer("k", value, at_least=1)


def test_one_of_gives_what_is_allowed():
    assert checks.one_of("reduction", None, ["mean", None]) is None
    assert checks.one_of("name", "pnp", {"pnp": 1, "smooth_ap": 2}) == "pnp"


def test_one_of_names_what_is_allowed_and_the_likely_word():
    message = (
        r"argument `name`\. Expected one of \['pnp', 'smooth_ap'\]\. Received: name='smoothap'\. "
        r'Did you mean "smooth_ap"\?$'
    )
    with pytest.raises(InputError, match=message):
        checks.one_of("name", "smoothap", {"pnp": 1, "smooth_ap": 2})


@pytest.mark.parametrize("value", ["zzz", 5, None, ["pnp"]], ids=repr)
def test_one_of_gives_no_hint_where_nothing_is_near(value):
    with pytest.raises(InputError, match=r"Expected one of \['pnp', 'smooth_ap'\]. Received") as error:
        checks.one_of("name", value, ["pnp", "smooth_ap"])
    assert "Did you mean" not in str(error.value)


def test_did_you_mean_knows_words_only():
    assert checks.did_you_mean("temprature", ["alpha", "temperature", None]) == ' Did you mean "temperature"?'
    assert checks.did_you_mean("xyz", ["alpha"]) == ""
