"""What a person sees of training: a line of progress, warnings in words, and an answer to Ctrl-C."""

import itertools
import os
import pty
import re
import signal
import time

import numpy as np
import pytest

from tests.cases import slow
from tests.training.runs import (
    Setup,
    evaluation,
    event_hashes,
    events,
    finish,
    logged_steps,
    saved_step,
    start_alone,
)
from tfrank.common import progress
from tfrank.common.progress import Progress
from tfrank.training.trainer import Interrupted

LINE = re.compile(
    r"step (\d+)/(\d+)  loss (\d+\.\d{4})  batch R@1 ([01]\.\d{3})  valid queries (\d+)%"
    r"  ([\d,]+) images/s  ETA (\d+):([0-5]\d):([0-5]\d)"
)
# The numbers of steps, the steps of a line, and so on.
STEP, STEPS, LOSS, RECALL, COUNTING, SPEED, HOURS, MINUTES, SECONDS = range(9)


def shown(output) -> list[tuple]:
    """The numbers of the lines of progress in an output."""
    return [match.groups() for match in LINE.finditer(output)]


def test_a_line_of_progress_has_what_the_log_has(tmp_path, capsys):
    Setup(tmp_path).fit(4, evaluate=lambda: evaluation(0.5), evaluate_every=4)
    output = capsys.readouterr().out
    assert "\r" not in output
    lines = [line for line in output.splitlines() if line.startswith("step")]
    first, last = lines[1], lines[-2]
    assert lines[0] == "step 0: validation Recall@1 0.5000, mAP 0.5000"
    assert lines[-1] == f"{lines[0].replace('0', '4', 1)} (best before: 0.5000 at step 0)"
    curves = {tag: dict(rows) for tag, rows in events(tmp_path).items()}
    for line, step in ((first, 2), (last, 4)):
        (found,) = shown(line)
        assert LINE.fullmatch(line)
        assert (int(found[STEP]), int(found[STEPS])) == (step, 4)
        assert float(found[LOSS]) == pytest.approx(float(curves["loss"][step]), abs=1e-4)
        assert float(found[RECALL]) == pytest.approx(float(curves["batch_recall_at_1"][step]), abs=1e-3)
        assert found[COUNTING] == "75"
    assert last.endswith("ETA 0:00:00")


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_speed_and_end_are_reckoned_from_the_steps_of_this_process(capsys, clock):
    shows = Progress("step", 8_000, done=400)
    clock[0] = 50.0
    shows.show(500, images_per_step=32)
    assert capsys.readouterr().out == "step 500/8000  64 images/s  ETA 1:02:30\n"


def test_off_a_terminal_a_line_is_shown_every_ten_seconds_or_always(capsys, clock):
    shows = Progress("step", 100)
    for step in range(1, 50):
        clock[0] = float(step)
        shows.show(step, always=step == 3)
    steps = [int(line.split()[1].split("/")[0]) for line in capsys.readouterr().out.splitlines()]
    assert steps == [3, 13, 23, 33, 43]


def on_a_terminal(workdir, *flags) -> str:
    """What a whole run writes to a terminal."""
    ours, theirs = pty.openpty()
    process = start_alone(workdir, *flags, stdout=theirs)
    os.close(theirs)
    output = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Which is how Linux reports that nobody writes any more.
            break
        if not read:
            break
        output += read
    os.close(ours)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output.decode()


@pytest.mark.slow
def test_a_terminal_shows_one_line_rewritten_in_place_and_a_pipe_whole_lines(tmp_path):
    flags = (
        "--config.train.steps=12",
        "--config.data.validation_classes=2",
        "--config.train.evaluate_every=6",
    )
    output = on_a_terminal(tmp_path / "terminal", *flags)
    # A terminal turns "\n" into "\r\n"; each piece is what stands on one line, the last part of it visible.
    rows = [row.split("\r")[-1] for row in output.split("\r\n")]
    assert [int(found[STEP]) for found in shown(output)] == [2, 4, 6, 8, 10, 12]
    steps = [row for row in rows if row.startswith("step ")]
    assert [bool(shown(row)) for row in steps] == [False, False, True, False]
    start, middle, last, end = steps
    assert start.startswith("step 0: validation ") and middle.startswith("step 6: validation ")
    assert end.startswith("step 12: validation ")
    assert last.startswith("step 12/12  loss ") and last.endswith("ETA 0:00:00\x1b[K")
    assert output.count("\x1b[K") >= 8
    for found in shown(output):
        assert int(found[HOURS]) == 0 and int(found[MINUTES]) < 10

    status, output, errors = finish(tmp_path / "pipe", *flags)
    assert status == 0, errors
    assert "\r" not in output and "\x1b" not in output
    assert all(LINE.fullmatch(line) for line in output.splitlines() if re.match(r"step \d+/", line))
    assert [int(found[STEP]) for found in shown(output)][-1] == 12
    assert (tmp_path / "pipe" / "training.csv").read_text() == (
        tmp_path / "terminal" / "training.csv"
    ).read_text()


def warnings(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")]


def test_a_collapsed_embedding_is_said_once_with_what_to_try(tmp_path, capsys):
    Setup(tmp_path, constant=True).fit(6, log_every=1)
    (warning,) = warnings(capsys)
    assert "collapsed" in warning and "lower learning rate" in warning and "temperature" in warning
    assert all(spread < 1e-2 for _, spread in events(tmp_path)["spread"])


def test_a_batch_in_which_no_query_counts_is_said_once_with_what_to_try(tmp_path, capsys):
    setup = Setup(tmp_path, labels=tuple(range(8)))
    before = [weight.numpy() for weight in setup.model.trainable_variables]
    setup.fit(6, log_every=1)
    (warning,) = warnings(capsys)
    assert "no image of this batch has another of its class" in warning
    assert warning.endswith("Draw several images of each class.")
    assert [row.split(",")[1:4] for row in logged_steps(tmp_path)] == [["0.0", "0.0", "0.0"]] * 6
    assert all((old == new.numpy()).all() for old, new in zip(before, setup.model.trainable_variables))


def test_a_flat_loss_is_said_at_the_start_of_a_run_and_not_when_it_goes_on(tmp_path, capsys):
    Setup(tmp_path, slope=lambda labels, embeddings: 0.0).fit(4)
    (warning,) = warnings(capsys)
    assert "the loss is flat (slope 0.0e+00)" in warning
    Setup(tmp_path, slope=lambda labels, embeddings: 0.0).fit(8)
    assert not warnings(capsys)


def test_a_loss_that_is_flat_because_all_is_ranked_rightly_is_not_warned_of(tmp_path, capsys):
    Setup(tmp_path, labels=(0,) * 8, slope=lambda labels, embeddings: 0.0).fit(4)
    assert not warnings(capsys)


def test_a_batch_that_is_neither_is_not_warned_of(tmp_path, capsys):
    Setup(tmp_path).fit(4, log_every=1)
    assert not warnings(capsys)


def interrupting(*numbers):
    """An evaluation in which these signals arrive, one directly after the other; not the one of the start."""
    calls = itertools.count()

    def evaluate():
        for number in numbers if next(calls) else ():
            os.kill(os.getpid(), number)
            time.sleep(0.01)
        return evaluation(0.5)

    return evaluate


def scores(*values):
    """Evaluations of these scores, one after another."""
    left = iter(values)
    return lambda: evaluation(next(left))


def test_the_model_before_training_is_a_candidate_for_the_best_weights(tmp_path):
    setup = Setup(tmp_path)
    start = setup.model.get_weights()
    # An equal score is no improvement.
    setup.fit(4, evaluate=scores(0.5, 0.5, 0.3), evaluate_every=2)
    assert setup.trainer.best == pytest.approx((0, 0.5, 0.5))
    setup.model.load_weights(setup.trainer.best_weights)
    for before, best in zip(start, setup.model.get_weights()):
        np.testing.assert_array_equal(before, best)


@pytest.mark.parametrize("score", [0.9, 0.3])
def test_a_score_that_float32_rounds_down_or_up_is_no_improvement_on_itself(tmp_path, score):
    assert (np.float32(score).item() < score) == (score == 0.9)
    setup = Setup(tmp_path)
    setup.fit(8, evaluate=scores(*[score] * 5), evaluate_every=2, checkpoint_every=100, patience=2)
    assert (setup.trainer.done, setup.trainer.best.step) == (4, 0)


def test_without_evaluations_there_are_no_best_weights(tmp_path):
    setup = Setup(tmp_path)
    setup.fit(4)
    assert setup.trainer.best is None


def test_training_ends_early_when_patience_runs_out_and_goes_on_no_further(tmp_path, capsys):
    """The best is step 2, so with a patience of 2 evaluations of every 2 steps the end is step 6."""
    setup = Setup(tmp_path)
    options = dict(evaluate_every=2, checkpoint_every=100, patience=2)
    state = setup.fit(20, evaluate=scores(0.1, 0.5, 0.4, 0.3), **options)
    assert (setup.trainer.done, saved_step(tmp_path), setup.trainer.best.step) == (6, 6, 2)
    assert "Ended at step 6: no better validation for 4 steps." in capsys.readouterr().out
    again = Setup(tmp_path)
    assert again.fit(40, evaluate=scores(), **options) == state
    assert again.trainer.best == setup.trainer.best
    said = capsys.readouterr().out
    assert "Ended at step 6: no better validation for 4 steps. No more steps are taken." in said
    assert "another folder with a higher patience" in said
    Setup(tmp_path).fit(6, evaluate=scores(), **options)
    assert "Ended" not in capsys.readouterr().out, "all steps that were asked for are taken"


def test_patience_counts_over_a_resume(tmp_path):
    options = dict(evaluate_every=2, checkpoint_every=100, patience=2)
    Setup(tmp_path).fit(4, evaluate=scores(0.1, 0.5, 0.4), **options)
    setup = Setup(tmp_path)
    setup.fit(20, evaluate=scores(0.3), **options)
    assert setup.trainer.done == 6


EVERY = dict(evaluate_every=3, checkpoint_every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What 9 uninterrupted steps leave behind."""
    folder = tmp_path_factory.mktemp("whole")
    state = Setup(folder).fit(9, evaluate=lambda: evaluation(0.5), **EVERY)
    return state, logged_steps(folder), event_hashes(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)])
def test_a_signal_during_an_evaluation_lets_it_end_and_saves_its_step(tmp_path, capsys, whole, number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        Setup(tmp_path).fit(9, evaluate=interrupting(number), **EVERY)
    assert signal.getsignal(number) == before
    assert "Stopped and saved at step 3. The same command goes on from there." in capsys.readouterr().out
    assert saved_step(tmp_path) == 3
    assert logged_steps(tmp_path)[-1].endswith(",0.5")
    assert (tmp_path / "best.weights.h5").exists()
    check_going_on(tmp_path, whole)


def test_a_second_ctrl_c_does_not_wait_and_loses_only_what_was_not_saved(tmp_path, whole):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as error:
        Setup(tmp_path).fit(9, evaluate=interrupting(signal.SIGINT, signal.SIGINT), **EVERY)
    assert error.type is KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) == before
    assert saved_step(tmp_path) == 2
    check_going_on(tmp_path, whole)


def check_going_on(folder, whole):
    state = Setup(folder).fit(9, evaluate=lambda: evaluation(0.5), **EVERY)
    assert (state, logged_steps(folder), event_hashes(folder)) == whole
