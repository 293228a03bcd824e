"""Two machines, here two processes, train as one device does, and neither waits for one that has ended."""

import contextlib
import json
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import HANGS
from tests.training.runs import finish, logged_steps, start, start_alone, state_hashes
from tests.training.test_cluster import addresses, environment
from tests.training.test_resume import saved_step
from tfrank.common.files import locked
from tfrank.configs import digits, of_run
from tfrank.run import datasets, experiment
from tfrank.training.checkpoints import restore_model

pytestmark = pytest.mark.slow

STEPS = 30
# Not Adam, which turns the rounding of a gradient near zero into a whole step.
FLAGS = (
    f"--config.train.steps={STEPS}",
    "--config.train.optimizer=sgd",
    "--config.train.weight_average=0.9",
    "--config.data.max_shift=1",
    "--config.data.validation_classes=4",
    "--config.train.evaluate_every=10",
)
MULTI_WORKER = "--config.train.strategy=multi_worker"
# From the end of one machine to the end of the other; TensorFlow alone needs some ten.
PROMPTLY = 40
ANOTHER = "Error: Another machine of the run has ended"


@contextlib.contextmanager
def two_workers(workdir, *flags, other_workdir=None, other_flags=()):
    """The processes of the chief and of the other worker; none of them outlives the block."""
    workers = addresses(2)
    processes = []
    try:
        for index, folder in enumerate((workdir, other_workdir or workdir)):
            options = (*FLAGS, MULTI_WORKER, *flags, *(other_flags if index else ()))
            env = {**os.environ, **environment(workers, index)}
            processes.append(start(folder, *options, env=env))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ends(processes, seconds):
    """Of each process its exit status, output and errors; fails where one takes longer."""
    limit = time.monotonic() + seconds
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=max(1, limit - time.monotonic()))
        results.append((process.returncode, output, without_start_up(errors)))
    return results


def without_start_up(errors):
    """What a process wrote to stderr, without what TensorFlow always writes there."""
    lines = [line for line in errors.splitlines() if not line.startswith(("I0000 ", "WARNING: All log"))]
    return "\n".join(lines)


def run(workdir, *flags, **options):
    """The ends of two workers that are left alone."""
    with two_workers(workdir, *flags, **options) as processes:
        return ends(processes, 120)


def wait_for_steps(workdir, processes, count):
    """Until the chief, started on a folder where it was before, has taken and logged steps up to `count`."""
    log = pathlib.Path(workdir, "training.csv")
    before, limit = inode(log), time.monotonic() + HANGS
    # Where it goes on from an earlier run it first writes a new file, without what is to be done again.
    while inode(log) == before or len(logged_steps(workdir)) < count:
        assert time.monotonic() < limit, "no steps"
        assert all(process.poll() is None for process in processes), ends(processes, 10)
        time.sleep(0.005)


def inode(path):
    return path.stat().st_ino if path.exists() else None


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("one_device") / "run"
    status, _, errors = finish(workdir, *FLAGS)
    assert status == 0, errors
    return workdir


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_workers")
    (folder / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "temporary"))
        # TensorFlow's AutoGraph would leave the byte code of the files that it writes there and removes.
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        return folder / "run", run(folder / "run")


def config_of(workdir):
    return of_run.get_config(str(workdir / "config.json"))


def weights_of(workdir):
    """The model's variables at the beginning of the run, and at its end."""
    model = experiment.build_model(config_of(workdir))
    before = [variable.numpy() for variable in model.variables]
    assert restore_model(str(workdir / "checkpoints"), model) == STEPS
    return before, [variable.numpy() for variable in model.variables], [v.path for v in model.variables]


def test_two_workers_end_with_the_weights_of_one_device(one_device, uninterrupted):
    workdir, results = uninterrupted
    assert [status for status, _, _ in results] == [0, 0], results
    before, one, names = weights_of(one_device)
    _, two, _ = weights_of(workdir)
    for old, expected, got, name in zip(before, one, two, names):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=name)
        assert np.linalg.norm(got - expected) <= 1e-4 * np.linalg.norm(expected - old), name


def test_all_else_in_the_checkpoint_of_two_workers_is_that_of_one_device_too(one_device, uninterrupted):
    one, two = (tf.train.load_checkpoint(str(w / "checkpoints")) for w in (one_device, uninterrupted[0]))
    names = set(one.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter"}
    assert any(name.startswith("average/") for name in names)
    assert any("optimizer" in name for name in names)
    for name in names:
        expected, got = one.get_tensor(name), two.get_tensor(name)
        if isinstance(expected, bytes):
            assert got == expected, name
        else:
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5, err_msg=name)


def test_the_losses_and_measures_of_two_workers_are_those_of_one_device(one_device, uninterrupted):
    def numbers(workdir):
        return [[float(cell or -1) for cell in line.split(",")] for line in logged_steps(workdir)]

    workdir, _ = uninterrupted
    assert len(logged_steps(workdir)) == STEPS
    np.testing.assert_allclose(numbers(workdir), numbers(one_device), atol=1e-5)
    one, two = (json.loads((w / "metrics.json").read_text()) for w in (one_device, workdir))
    assert one["trained"].keys() == two["trained"].keys()
    for name, value in one["trained"].items():
        assert two["trained"][name] == pytest.approx(value, abs=1e-4), name


def test_only_the_chief_speaks_and_writes(one_device, uninterrupted):
    workdir, ((_, chief, chief_errors), (_, other, other_errors)) = uninterrupted
    assert f"step {STEPS}/{STEPS}" in chief and "Recall@1" in chief
    told = [line for line in other.splitlines() if not line.startswith("Waiting for")]
    assert told == ["Worker 1 of 2: all are there.", "Worker 1: the chief, worker 0, shows progress."]
    assert (chief_errors, other_errors) == ("", "")
    assert sorted(os.listdir(workdir)) == sorted(os.listdir(one_device))
    assert len(os.listdir(workdir / "tensorboard")) == 1
    assert not os.listdir(workdir.parent / "temporary")


def test_whichever_machine_dies_the_other_says_so_and_the_same_command_goes_on_exactly(
    uninterrupted, tmp_path
):
    workdir = tmp_path / "run"
    for victim, number, status in (
        (1, signal.SIGKILL, -9),
        (0, signal.SIGKILL, -9),
        (1, signal.SIGTERM, 130),
        (0, signal.SIGINT, 130),
    ):
        before = saved_step(workdir)
        with two_workers(workdir) as processes:
            wait_for_steps(workdir, processes, before + 4)
            processes[victim].send_signal(number)
            results = ends(processes, PROMPTLY)
        assert before < saved_step(workdir) < STEPS
        assert results[victim][0] == status, results
        survivor, _, errors = results[1 - victim]
        told = "killed, .*" if status < 0 else f"worker {victim}: Interrupted"
        assert survivor == 1
        assert_says(
            errors,
            rf"{ANOTHER} \({told}\)\. Correct the cause, and run the same command on all of them: .*",
        )
        if (victim, number) == (0, signal.SIGINT):
            assert "Stopped and saved at step" in results[0][1]
    results = run(workdir)
    assert [status for status, _, _ in results] == [0, 0], results
    assert f"Going on from step {STEPS}" not in results[0][1] and "Going on from step" in results[0][1]
    assert state_hashes(workdir) == state_hashes(uninterrupted[0])
    assert logged_steps(workdir) == logged_steps(uninterrupted[0])


def assert_says(errors, pattern):
    """That a process ended with one clear line, and nothing behind or before it."""
    assert re.fullmatch(pattern, errors), errors


@pytest.mark.parametrize("machine", [0, 1])
def test_a_bad_record_in_the_slice_of_one_machine_is_named_by_both(machine, tmp_path):
    workdir, step = tmp_path / "run", 4
    workdir.mkdir()
    config = digits.get_config()
    config.data.train, config.data.test, config.data.validation_classes = (0, 1), (8, 9), 4
    config.data.classes_per_batch, config.data.examples_per_class = 6, 4
    index = datasets.build_data(config.data, str(workdir), seed=config.seed).train
    damage(
        index,
        np.split(datasets.build_sampler(config.data, index, seed=config.seed).batch(step), 2)[machine][5],
    )
    results = run(workdir)
    assert [status for status, _, _ in results] == [1, 1], results
    reason = r"record \d+ of .*\(image id '.*'\): the bytes of this record changed .* \(checksum\)\..*"
    assert_says(results[machine][2], f"Error: {reason}")
    assert_says(results[1 - machine][2], rf"{ANOTHER} \(worker {machine}: {reason}\)\. Correct the cause, .*")
    # The chief saves what it can; told of it by another, it is in the middle of a step.
    assert saved_step(workdir) == (3 if machine else step)


def damage(index, number):
    with open(index.shards[index.shard[number]], "r+b") as file:
        file.seek(index.offset[number] + 30)
        file.write(b"changed!")


DIFFERENCES = {
    "another learning rate": (
        {"other_flags": ["--config.train.learning_rate=0.5"]},
        r"The run in .* has another config \(train\.learning_rate: 0\.001 before, 0\.5 now\)\. Choose .*",
    ),
    "another folder": (
        {"other_workdir": "elsewhere"},
        r"Worker 0 has saved no config in .*/elsewhere\. With several machines, --workdir .*",
    ),
    "a bad value": (
        {"other_flags": ["--config.loss.temperature=-1"]},
        r"Invalid value for argument `config\.loss\.temperature`\. Expected .* above 0\. Received: .*",
    ),
}


@pytest.mark.parametrize("options, reason", DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_machine_that_was_started_otherwise_is_refused_and_the_chief_told_why(options, reason, tmp_path):
    if "other_workdir" in options:
        options = {"other_workdir": tmp_path / options["other_workdir"]}
    results = run(tmp_path / "run", **options)
    assert [status for status, _, _ in results] == [1, 1], results
    assert_says(results[1][2], f"Error: {reason}")
    # Whether the news arrives while it waits or before it begins to.
    told = rf"(worker 1: {reason}|killed, .* or for a reason that it says itself)"
    assert_says(results[0][2], rf"{ANOTHER} \({told}\)\. Correct the cause, .*")
    assert not saved_step(tmp_path / "run")


def test_why_the_chief_could_not_begin_is_told_to_the_others(tmp_path):
    with locked(str(tmp_path)):
        results = run(tmp_path)
    assert [status for status, _, _ in results] == [1, 1], results
    reason = rf"Another process is at work in {tmp_path}\. Wait for it or stop it\."
    assert_says(results[0][2], f"Error: {reason}")
    # Whether the news arrives while it waits or before it begins to.
    told = rf"(worker 0: {reason}|killed, .* or for a reason that it says itself)"
    assert_says(results[1][2], rf"{ANOTHER} \({told}\)\. Correct the cause, .*")


def test_one_who_waits_for_the_others_says_so_at_once_and_can_be_interrupted(tmp_path):
    workers = addresses(2)
    env = {**os.environ, **environment(workers, 0)}
    env.pop("PYTHONUNBUFFERED", None)
    process = start_alone(tmp_path, MULTI_WORKER, env=env)
    watchdog = threading.Timer(40, process.kill)
    watchdog.start()
    try:
        # Not only when it ends: somebody has to start the other one.
        assert process.stdout.readline() == f"Waiting for workers 1 ({workers[1]})\n"
        assert watchdog.is_alive()
        process.send_signal(signal.SIGINT)
        ((status, output, errors),) = ends([process], 20)
        assert (status, output, errors) == (130, "", "Interrupted.")
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
