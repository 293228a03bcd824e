"""What a user can get wrong in training and evaluation ends with status 1 and one line of advice."""

import pathlib

import pytest

from tests.command_lines import run, run_alone
from tests.refusals import check, rows, words

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent
TRAINING, EVALUATION = rows(HERE / "refused_training.txt"), rows(HERE / "refused_evaluation.txt")


@pytest.mark.parametrize("arguments, message", TRAINING, ids=[line for line, _ in TRAINING])
def test_training_says_in_one_line_what_is_wrong_and_what_to_do(bad_runs, tmp_path, arguments, message):
    new = tmp_path / "new"
    ended = run("train_main.py", *words("train_main.py", arguments, bad_runs, new))
    check(ended, message, bad_runs, new)


@pytest.mark.parametrize("arguments, message", EVALUATION, ids=[line for line, _ in EVALUATION])
def test_evaluation_says_in_one_line_what_is_wrong_and_what_to_do(bad_runs, arguments, message):
    check(run("eval_main.py", *words("eval_main.py", arguments, bad_runs, "")), message, bad_runs, "")


def test_a_process_of_its_own_ends_as_a_forked_one(bad_runs, tmp_path):
    (arguments, message), new = TRAINING[0], tmp_path / "new"
    ended = run_alone("train_main.py", *words("train_main.py", arguments, bad_runs, new))
    check(ended, message, bad_runs, new)
