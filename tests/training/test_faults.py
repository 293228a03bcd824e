"""Full disks and damaged files: said in one line, and never more lost than what they held."""

import contextlib
import resource
import shutil

import numpy as np
import pytest

from tests.command_lines import HANGS
from tests.training.runs import (
    Setup,
    evaluation,
    event_hashes,
    events,
    finish,
    logged_steps,
    saved_step,
    start,
    start_alone,
    state_hashes,
)
from tfrank.common.checks import InputError
from tfrank.training.log import TrainingLog

DATA, INDEX = "ckpt-8.data-00000-of-00001", "ckpt-8.index"
EVALUATIONS = dict(evaluate=lambda: evaluation(0.5), evaluate_every=4)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A run of 8 steps with checkpoints of steps 4 and 8, and what 12 steps at once leave behind."""
    folder = tmp_path_factory.mktemp("parts")
    Setup(folder / "8").fit(8, **EVALUATIONS)
    expected = Setup(folder / "12").fit(12, **EVALUATIONS)
    return folder / "8", (expected, logged_steps(folder / "12"), event_hashes(folder / "12"))


@pytest.fixture
def damaged(parts, tmp_path):
    """A copy of the run of 8 steps, to be damaged."""
    return shutil.copytree(parts[0], tmp_path / "run")


def go_on(folder):
    """What there is after going on to 12 steps."""
    return Setup(folder).fit(12, **EVALUATIONS), logged_steps(folder), event_hashes(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage, names, word",
    [
        (cut, [DATA], "is damaged"),
        (empty, [DATA], "is damaged"),
        (flip_a_bit, [DATA], "is damaged"),
        (lambda path: path.unlink(), [DATA], "lacks a file"),
        (cut, [INDEX], "is damaged"),
        (empty, [INDEX], "is damaged"),
        (cut, [DATA, INDEX], "is damaged"),
        (empty, [INDEX, "checkpoint"], "is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_skipped_for_the_one_before(damaged, caplog, damage, names, word):
    for name in names:
        damage(damaged / "checkpoints" / name)
    assert Setup(damaged).checkpoints.restore() == 4
    (warning,) = caplog.messages
    assert f"ckpt-8 {word}" in warning and "the one before it" in warning


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_as_if_nothing_had_happened(damaged, parts):
    cut(damaged / "checkpoints" / DATA)
    assert go_on(damaged) == parts[1]


def test_a_run_in_a_folder_of_any_name_goes_on(damaged):
    # TensorFlow takes these for a pattern.
    assert Setup(shutil.move(damaged, damaged.parent / "run [1]*?")).checkpoints.restore() == 8


def test_a_run_without_any_whole_checkpoint_is_refused(damaged):
    for path in (damaged / "checkpoints").glob("*.data*"):
        empty(path)
    with pytest.raises(InputError, match=r"All checkpoints in .* are damaged"):
        Setup(damaged).checkpoints.restore()


@pytest.mark.parametrize("content", [None, "", "junk{{"])
def test_checkpoints_are_found_although_their_list_is_lost_or_damaged(damaged, content):
    listing = damaged / "checkpoints" / "checkpoint"
    listing.unlink() if content is None else listing.write_text(content)
    assert Setup(damaged).checkpoints.restore() == 8


@pytest.mark.parametrize("junk", [b"1", b"9,0.1,", b"9,0.1,,,\r\n10,", b"junk\r\n,,,,\r\n", b"\0" * 50])
def test_half_a_row_or_junk_at_the_end_of_the_log_is_dropped(damaged, junk):
    rows = logged_steps(damaged)
    with open(damaged / "training.csv", "ab") as log:
        log.write(junk)
    TrainingLog(str(damaged), images_per_step=8).begin(8, "")
    assert logged_steps(damaged) == rows


@pytest.mark.parametrize("junk", [b"\x18\0\0\0", b"junk" * 20, b"\0" * 64])
def test_half_an_event_or_junk_at_the_end_of_the_events_is_dropped(damaged, junk):
    (path,), before = (damaged / "tensorboard").iterdir(), event_hashes(damaged)
    path.write_bytes(path.read_bytes() + junk)
    TrainingLog(str(damaged), images_per_step=8).begin(8, "")
    assert event_hashes(damaged) == before


def test_events_are_lost_only_behind_a_damaged_one(damaged, parts):
    (path,) = (damaged / "tensorboard").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"junk" + content[len(content) // 2 + 4 :])
    state, rows, curves = go_on(damaged)
    assert (state, rows) == parts[1][:2]
    steps = [step for step, _ in curves["loss"]]
    assert steps == sorted(set(steps)) and {1, 2, 9, 10, 11, 12} <= set(steps)
    assert set(curves["loss"]) <= set(parts[1][2]["loss"])


@pytest.mark.parametrize("name", ["training.csv", "cost.json", "tensorboard"])
def test_a_lost_part_of_the_log_stops_nothing(damaged, parts, name):
    path = damaged / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    state, rows, curves = go_on(damaged)
    assert state == parts[1][0]
    assert [row.split(",")[0] for row in rows][-4:] == ["9", "10", "11", "12"]
    assert curves["loss"][-4:] == parts[1][2]["loss"][-4:]


@contextlib.contextmanager
def disk_full(size):
    """No file can grow beyond so many bytes; writing more fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before_it(damaged, parts):
    setup = Setup(damaged)
    setup.checkpoints.restore()
    with disk_full(500), pytest.raises(InputError, match=r"No checkpoint was saved.*still good; the same"):
        setup.checkpoints.save(9)
    assert saved_step(damaged) == 8
    assert go_on(damaged) == parts[1]


def test_a_first_checkpoint_that_does_not_fit_does_not_speak_of_one_before_it(tmp_path):
    setup = Setup(tmp_path)
    with disk_full(500), pytest.raises(InputError, match=r"No checkpoint was saved") as error:
        setup.checkpoints.save(1)
    assert "before" not in str(error.value)
    assert saved_step(tmp_path) == 0


@pytest.mark.parametrize("chief", [True, False])
def test_the_best_weights_of_an_earlier_run_are_not_those_of_one_begun_anew(tmp_path, chief):
    (tmp_path / "best.weights.h5").write_bytes(b"of an earlier run")
    Setup(tmp_path).fit(2, evaluate=(lambda: evaluation(0.9)) if chief else None)
    assert (tmp_path / "best.weights.h5").exists() != chief


def test_best_weights_that_do_not_fit_leave_those_before_them(tmp_path):
    setup = Setup(tmp_path)
    setup.fit(4, **EVALUATIONS)
    before = (tmp_path / "best.weights.h5").read_bytes()

    def save_best(path):
        with disk_full(0):
            setup.model.save_weights(path)

    with pytest.raises(OSError):
        setup.fit(8, evaluate=lambda: evaluation(0.9), evaluate_every=4, save_best=save_best)
    assert (tmp_path / "best.weights.h5").read_bytes() == before
    assert saved_step(tmp_path) == 4
    again = Setup(tmp_path)
    again.fit(8, evaluate=lambda: evaluation(0.9), evaluate_every=4)
    assert float(again.checkpoints.best) == np.float32(0.9)
    assert [step for step, _ in events(tmp_path)["validation_recall_at_1"]] == [0, 4, 8]


def the_error(errors) -> str:
    """The one line of a command's errors."""
    (line,) = [line for line in errors.splitlines() if not line.startswith(("WARNING: All log", "I0000"))]
    assert line.startswith("Error: ")
    return line


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_and_with_room_the_same_command_goes_on(tmp_path):
    # Checkpoints larger than all other files but the records.
    flags = (
        "--config.train.steps=12",
        "--config.model.blocks=1",
        "--config.model.embedding_dim=1024",
        "--config.train.weight_average=0.9",
    )
    assert finish(tmp_path / "whole", *flags)[0] == 0
    workdir = tmp_path / "run"

    def limit(number):
        resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))

    process = start_alone(workdir, *flags, preexec_fn=lambda: limit(200_000))
    _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 1
    assert "File too large" in the_error(errors) and f"{workdir}/records" in the_error(errors)

    process = start(workdir, *flags)
    while saved_step(workdir) < 3:
        assert process.poll() is None, process.communicate()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, 60_000))
    _, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 1
    assert "No checkpoint was saved. Cannot write" in the_error(errors) and "File too large" in errors
    assert "The one before it is still good" in errors
    assert 3 <= saved_step(workdir) < 12

    status, output, errors = finish(workdir, *flags)
    assert status == 0, errors
    assert "Going on from step" in output
    assert state_hashes(workdir) == state_hashes(tmp_path / "whole")
    assert logged_steps(workdir) == logged_steps(tmp_path / "whole")
    assert event_hashes(workdir) == event_hashes(tmp_path / "whole")
