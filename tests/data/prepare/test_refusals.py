"""What a user can get wrong in preparing records ends with status 1 and one line of advice."""

import pathlib

import pytest

from tests.command_lines import PREPARE, run, run_alone
from tests.refusals import check, rows, words

pytestmark = pytest.mark.slow

ROWS = rows(pathlib.Path(__file__).parent / "refused.txt")


@pytest.mark.parametrize("arguments, message", ROWS, ids=[line or "no flags" for line, _ in ROWS])
def test_prepare_says_in_one_line_what_is_wrong_and_what_to_do(bad, tmp_path, arguments, message):
    new = tmp_path / "new"
    check(run(*PREPARE, *words("prepare", arguments, bad, new)), message, bad, new)


def test_a_process_of_its_own_ends_as_a_forked_one(bad, tmp_path):
    new = tmp_path / "new"
    check(run_alone(*PREPARE, *words("prepare", ROWS[1][0], bad, new)), ROWS[1][1], bad, new)
