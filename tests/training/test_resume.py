"""Killed, interrupted or merely stopped, a run that is started again ends as if nothing had happened."""

import os
import pathlib
import random
import signal
import time

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.runs import (
    Setup,
    evaluation,
    event_hashes,
    finish,
    logged_steps,
    saved_step,
    start,
    state_hashes,
)
from tfrank.common.checks import InputError
from tfrank.training import machine
from tfrank.training.checkpoints import Checkpoints, saved_checkpoints

STEPS = 60
# With everything that a run keeps: an average of the weights, a loss and a learning rate that change with
# the step, the best validation so far.
FLAGS = (
    "--config=configs/digits.py:recall_at_k",
    "--config.loss.simix=True",
    "--config.data.validation_classes=2",
    "--config.model.blocks=1",
    "--config.model.embedding_dim=8",
    "--config.train.learning_rate=0.005",
    "--config.train.schedule=cosine",
    "--config.train.weight_average=0.9",
    "--config.train.checkpoint_every=2",
    "--config.train.evaluate_every=11",
    f"--config.train.steps={STEPS}",
)
# When to kill. The best weights are those of step 0, then those of step 11, so two kills find them written.
MOMENTS = ["best weights"] * 2 + ["start-up"] + ["save"] * 4 + ["log", "events", "any"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What a run leaves behind to which nothing happened."""
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    status, _, errors = finish(workdir, *FLAGS)
    assert status == 0, errors
    return left_behind(workdir)


def left_behind(workdir) -> dict:
    """What a run leaves behind, so that equal runs leave what is equal."""
    best = {}
    with h5py.File(workdir / "best.weights.h5") as file:
        file.visititems(
            lambda name, item: best.update(
                {name: item[()].tobytes()} if item.__class__ is h5py.Dataset else {}
            )
        )
    return {
        "state": state_hashes(workdir),
        "training.csv": logged_steps(workdir),
        "best weights": best,
        "events": event_hashes(workdir),
        "metrics": (workdir / "metrics.json").read_text(),
    }


def check_equal(workdir, expected):
    """Part by part, for a short message where they differ."""
    found = left_behind(workdir)
    for part in expected:
        assert found[part] == expected[part], part
    # And every step once, in the one and the other.
    assert [int(line.split(",")[0]) for line in found["training.csv"]] == list(range(1, STEPS + 1))
    assert [step for step, _ in found["events"]["loss"]] == list(range(1, STEPS + 1))


def is_saving(workdir) -> bool:
    """TensorFlow writes a checkpoint to a folder `ckpt-<n>_temp` before it takes its name."""
    temporary = workdir.glob("checkpoints/ckpt-*_temp")
    return any(int(path.name[5:-5]) > saved_step(workdir) for path in temporary)


def is_writing_best(workdir) -> bool:
    return (workdir / "best.tmp.weights.h5").exists()


def events_of(workdir, process) -> list[pathlib.Path]:
    """The file that a process writes events to, once it has put the log in order."""
    return list((workdir / "tensorboard").glob(f"events.*.{process.pid}.*.v2"))


def wait_for(moment, workdir, process, chance):
    """Waits till the process is to be killed."""
    if moment == "start-up":
        return time.sleep(chance.uniform(0.1, 3.0))
    first, more = saved_step(workdir), chance.randint(0, 2)
    while len(logged_steps(workdir)) < first + more or not events_of(workdir, process):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    rows, (events,) = logged_steps(workdir), events_of(workdir, process)
    size, last = events.stat().st_size, time.monotonic() + chance.uniform(0, 0.3)
    while not {
        "best weights": lambda: is_writing_best(workdir),
        "save": lambda: is_saving(workdir),
        "log": lambda: logged_steps(workdir) != rows,
        "events": lambda: events.stat().st_size != size,
        "any": lambda: time.monotonic() > last,
    }[moment]():
        assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_a_run_killed_ten_times_also_during_saves_ends_like_one_that_was_not(uninterrupted, tmp_path):
    workdir, chance = tmp_path / "run", random.Random(0)
    moments = MOMENTS[:2] + chance.sample(MOMENTS[2:], len(MOMENTS) - 2)
    assert len(moments) == 10
    hits = {"save": 0, "best weights": 0}
    for moment in moments:
        process = start(workdir, *FLAGS)
        wait_for(moment, workdir, process, chance)
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, (output, errors)
        hits["save"] += is_saving(workdir)
        hits["best weights"] += is_writing_best(workdir)
    assert hits["save"] >= 2 and hits["best weights"] >= 1, hits
    assert 0 < saved_step(workdir) < STEPS
    status, output, errors = finish(workdir, *FLAGS)
    assert status == 0, errors
    assert "Going on from step" in output and "Warning" not in output
    check_equal(workdir, uninterrupted)
    assert not list(workdir.rglob("*tmp*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, moment", [(signal.SIGINT, "any"), (signal.SIGTERM, "best weights")], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupt_saves_the_state_and_leaves_with_status_130(uninterrupted, tmp_path, number, moment):
    workdir = tmp_path / "run"
    process = start(workdir, *FLAGS)
    wait_for(moment, workdir, process, random.Random(0))
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped and saved at step" in output
    assert "Traceback" not in errors
    assert saved_step(workdir) == len(logged_steps(workdir)) > 0
    # The best weights are written during the evaluation of step 11.
    assert moment == "any" or saved_step(workdir) == 11
    status, _, errors = finish(workdir, *FLAGS)
    assert status == 0, errors
    check_equal(workdir, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_twice_leaves_at_once_without_a_traceback_and_loses_nothing_that_was_saved(
    uninterrupted, tmp_path
):
    workdir = tmp_path / "run"
    process = start(workdir, *FLAGS)
    wait_for("best weights", workdir, process, random.Random(0))
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, errors = process.communicate(timeout=60)
    # By status or, where it was leaving already, by the signal; 130 to a shell either way.
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.splitlines()[-1] == "Interrupted." and "Traceback" not in errors
    assert saved_step(workdir) >= 10
    status, _, errors = finish(workdir, *FLAGS)
    assert status == 0, errors
    check_equal(workdir, uninterrupted)


def test_training_in_two_parts_equals_training_at_once_with_dropout_and_batch_norm(tmp_path):
    options = dict(evaluate=lambda: evaluation(0.5), evaluate_every=3)
    once = Setup(tmp_path / "once").fit(12, **options)
    Setup(tmp_path / "twice").fit(6, **options)
    twice = Setup(tmp_path / "twice").fit(12, **options)
    assert any("seeds" in name for name in once) and any("loss_state" in name for name in once)
    assert once == twice
    assert logged_steps(tmp_path / "once") == logged_steps(tmp_path / "twice")
    assert event_hashes(tmp_path / "once") == event_hashes(tmp_path / "twice")


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    setup = Setup(tmp_path)
    with pytest.raises(InputError, match=r"loss is nan at step 7.*last good checkpoint.*learning rate"):
        setup.fit(12, setup.batches(12, poison=6))
    assert saved_step(tmp_path) == 4
    assert Setup(tmp_path).checkpoints.restore() == 4


@pytest.mark.parametrize("name", ["kernel", "moving_mean"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, name):
    setup = Setup(tmp_path)
    setup.fit(4)
    variable = next(variable for variable in setup.model.variables if variable.name == name)
    variable.assign(variable * np.nan)
    with pytest.raises(InputError, match="not finite"):
        setup.trainer._save()
    assert saved_step(tmp_path) == 4


def test_the_best_weights_are_those_of_the_best_evaluation_also_over_a_resume(tmp_path):
    values = iter([0.1, 0.3, 0.8, 0.5])
    seen = []

    def evaluate():
        seen.append([w.copy() for w in setup.model.get_weights()])
        return evaluation(next(values))

    setup = Setup(tmp_path)
    setup.fit(6, evaluate=evaluate, evaluate_every=2)
    setup = Setup(tmp_path)
    setup.checkpoints.restore()
    assert float(setup.checkpoints.best) == pytest.approx(0.8)
    setup.model.load_weights(setup.trainer.best_weights)
    assert setup.trainer.best == pytest.approx((4, 0.8, 0.1))
    for best, weight in zip(seen[2], setup.model.get_weights()):
        np.testing.assert_array_equal(best, weight)


def test_a_batch_that_cannot_be_made_saves_what_there_is_and_asks_for_an_explanation(tmp_path):
    setup = Setup(tmp_path)

    def batches(start, context):
        def check(batch, number):
            with tf.control_dependencies([tf.debugging.Assert(number < 5, ["bad image"])]):
                return {**batch, "label": tf.identity(batch["label"])}

        return tf.data.Dataset.zip(setup.batches(12)(start), tf.data.Dataset.range(start, 12)).map(check)

    def explain(step):
        raise InputError(f"image of step {step}")

    with pytest.raises(InputError, match="image of step 5"):
        setup.fit(12, batches, explain=explain)
    assert saved_step(tmp_path) == 5


def test_a_run_that_goes_on_with_other_threads_says_so_once(tmp_path, monkeypatch, caplog):
    threads = machine.describe()["threads"]
    assert threads == str(len(os.sched_getaffinity(0)))
    Setup(tmp_path).fit(2)
    monkeypatch.setattr(machine, "describe", lambda: {"threads": "none"})
    Setup(tmp_path).fit(4)
    Setup(tmp_path).fit(6)
    (warning,) = [line for line in caplog.messages if "not bit for bit as it would have" in line]
    assert f"threads: {threads} before, none now" in warning


def test_what_a_loss_keeps_is_in_the_checkpoint(tmp_path):
    setup, kept = Setup(tmp_path), tf.Variable(3.0)
    parts = (setup.model, keras.optimizers.SGD(), [kept])
    Checkpoints(str(tmp_path / "kept"), *parts).save(3)
    kept.assign(5.0)
    Checkpoints(str(tmp_path / "kept"), *parts).restore()
    assert float(kept) == 3.0


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path):
    for step in (8, 10, 9, 100):
        (tmp_path / f"ckpt-{step}.index").touch()
    names = [os.path.basename(path) for path in saved_checkpoints(str(tmp_path))]
    assert names == ["ckpt-8", "ckpt-9", "ckpt-10", "ckpt-100"]


def test_what_a_killed_save_left_is_removed(tmp_path):
    unfinished = tmp_path / "checkpoints" / "ckpt-9_temp"
    unfinished.mkdir(parents=True)
    (unfinished / "part-00000-of-00001.data").touch()
    Setup(tmp_path)
    assert not unfinished.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--config=configs/digits.py:soft_triple", "--config.train.matryoshka=8,2"],
        ["--config.train.memory_size=40", "--config.train.memory_warm_up=3"],
    ],
    ids=["proxies", "memory"],
)
def test_a_run_that_goes_on_has_the_proxies_and_the_memory_of_one_that_never_stopped(tmp_path, flags):
    def run(folder, steps):
        status, _, errors = finish(tmp_path / folder, *flags, f"--config.train.steps={steps}")
        assert status == 0, errors
        return state_hashes(tmp_path / folder)

    at_once = run("at once", 8)
    assert run("in two", 5) != at_once
    assert run("in two", 8) == at_once
    assert any(name.startswith("loss_state") for name in at_once)
