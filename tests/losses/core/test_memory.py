"""Many batch sizes and many hyper-parameters take no memory beyond that of a few compiled programs."""

import pytest

from tests.command_lines import run_alone
from tests.programs import printed_json
from tfrank.losses.core import padding

pytestmark = pytest.mark.slow


def taken(cause):
    """MB and pieces of memory."""
    return printed_json("-m", "tests.losses.core.memory_run", cause, run=run_alone)


@pytest.mark.parametrize("cause", ["smooth_ap", "histogram"])
def test_many_batch_sizes_take_no_more_memory_than_those_of_the_programs(cause):
    assert padding.SIZES[7] == 128
    megabytes, pieces = taken(cause)
    assert megabytes < 20 and pieces < 50


def test_many_temperatures_and_alphas_take_no_more_memory_than_ten():
    megabytes, pieces = taken("values")
    assert megabytes < 20 and pieces < 50
