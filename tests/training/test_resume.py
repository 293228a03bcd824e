"""Killed, interrupted or merely stopped, a run that is started again ends as if nothing had happened."""

import os
import random
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.runs import finish, logged_steps, start, state_hashes
from tfrank import PNPLoss
from tfrank.checks import InputError
from tfrank.losses.summary import batch_summary
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import build_step
from tfrank.training.trainer import Evaluation, Interrupted, Trainer

STEPS = 40


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    status, _, errors = finish(workdir, f"--config.train.steps={STEPS}")
    assert status == 0, errors
    return state_hashes(workdir), logged_steps(workdir)


def saved_step(workdir) -> int:
    latest = tf.train.latest_checkpoint(os.path.join(workdir, "checkpoints"))
    return int(latest.rsplit("-", 1)[1]) if latest else 0


def is_saving(workdir) -> bool:
    """TensorFlow writes a checkpoint to a folder `ckpt-<n>_temp` before it takes its name."""
    try:
        return any("temp" in name for name in os.listdir(workdir / "checkpoints"))
    except FileNotFoundError:
        return False


def lines(path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_a_run_killed_at_random_times_also_during_a_save_ends_like_one_that_was_not(uninterrupted, tmp_path):
    workdir, chance = tmp_path / "run", random.Random(0)
    log, flags = (
        workdir / "training.csv",
        (f"--config.train.steps={STEPS}", "--config.train.checkpoint_every=1"),
    )
    kills_during_a_save = 0
    for kill in range(6):
        process = start(workdir, *flags)
        wanted = 1 + saved_step(workdir) + chance.randint(1, 4)
        while lines(log) <= wanted and process.poll() is None:
            time.sleep(0.001)
        # Every other kill waits for a save to be under way, the rest come at any moment of a step.
        if kill % 2:
            time.sleep(chance.random() / 20)
        else:
            while not is_saving(workdir) and process.poll() is None:
                pass
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, (output, errors)
        kills_during_a_save += is_saving(workdir)
    status, output, errors = finish(workdir, *flags)
    assert status == 0, errors
    assert "Going on from step" in output
    assert kills_during_a_save
    assert (state_hashes(workdir), logged_steps(workdir)) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_the_state_and_leaves_with_status_130(uninterrupted, tmp_path, number):
    workdir = tmp_path / "run"
    process = start(workdir, f"--config.train.steps={STEPS}", "--config.train.checkpoint_every=3")
    while not (workdir / "training.csv").exists() or len(logged_steps(workdir)) < 4:
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped and saved at step" in output
    assert "Traceback" not in errors
    assert saved_step(workdir) == len(logged_steps(workdir))
    status, _, errors = finish(workdir, f"--config.train.steps={STEPS}")
    assert status == 0, errors
    assert (state_hashes(workdir), logged_steps(workdir)) == uninterrupted


def evaluation(recall_at_1):
    picture = tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8)).numpy()
    return Evaluation(recall_at_1, {"recall_at_1": recall_at_1}, picture)


class Setup:
    """A model with batch norm and dropout, whose seeds have to be in the checkpoint too."""

    def __init__(self, folder, learning_rate=1e-2):
        folder.mkdir(exist_ok=True)
        keras.utils.set_random_seed(0)
        layers = keras.layers
        self.model = keras.Sequential(
            [
                keras.Input([4, 4, 3]),
                layers.Flatten(),
                layers.Dense(8),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(4),
            ]
        )
        optimizer = build_optimizer(learning_rate=learning_rate)
        optimizer.build(self.model.trainable_variables)
        self.checkpoints = Checkpoints(str(folder / "checkpoints"), self.model, optimizer)
        strategy = tf.distribute.get_strategy()
        self.trainer = Trainer(
            str(folder),
            model=self.model,
            step=build_step(self.model, PNPLoss(temperature=0.1), optimizer, strategy=strategy),
            summary=batch_summary,
            checkpoints=self.checkpoints,
            strategy=strategy,
            batch_size=8,
        )
        self.folder = folder

    def fit(self, steps, batches=None, **options):
        self.checkpoints.restore()
        defaults = dict(
            checkpoint_every=4,
            log_every=2,
            explain=lambda step: None,
            save_best=self.model.save_weights,
        )
        self.trainer.fit(batches or self.batches(steps), steps=steps, **{**defaults, **options})
        return state_hashes(self.folder)

    @staticmethod
    def batches(steps, poison=None):
        """Batch t is a pure function of t; the images of step `poison` are NaN."""

        def batch(step):
            images = tf.random.stateless_uniform([8, 4, 4, 3], tf.stack([step, step]), 0, 255)
            if poison is not None:
                images = tf.where(step == poison, np.nan, images)
            return {"image": images, "label": tf.constant([0, 0, 1, 1, 2, 2, 3, 4], tf.int64)}

        return lambda start, context=None: tf.data.Dataset.range(start, steps).map(batch)


def test_training_in_two_parts_equals_training_at_once_with_dropout_and_batch_norm(tmp_path):
    once = Setup(tmp_path / "once").fit(12)
    Setup(tmp_path / "twice").fit(5)
    twice = Setup(tmp_path / "twice").fit(12)
    assert any("seeds" in name for name in once)
    assert once == twice
    # The last step of a run is looked at more closely.
    losses = [[line.split(",")[:2] for line in logged_steps(tmp_path / name)] for name in ("once", "twice")]
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    setup = Setup(tmp_path)
    with pytest.raises(InputError, match=r"loss is nan at step 7.*last good checkpoint.*learning rate"):
        setup.fit(12, setup.batches(12, poison=6))
    assert saved_step(tmp_path) == 4
    assert Setup(tmp_path).checkpoints.restore() == 4


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    setup = Setup(tmp_path)
    setup.fit(4)
    setup.model.trainable_variables[0].assign(setup.model.trainable_variables[0] * np.nan)
    with pytest.raises(InputError, match="not finite"):
        setup.trainer._save()
    assert saved_step(tmp_path) == 4


def test_a_signal_during_training_finishes_the_step_and_saves_it(tmp_path):
    setup = Setup(tmp_path)

    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluation(0.5)

    with pytest.raises(Interrupted):
        setup.fit(12, evaluate=evaluate, evaluate_every=3)
    assert saved_step(tmp_path) == 3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_best_weights_are_those_of_the_best_evaluation_also_over_a_resume(tmp_path):
    values = iter([0.3, 0.8, 0.5, 0.9])
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
    for best, weight in zip(seen[1], setup.model.get_weights()):
        np.testing.assert_array_equal(best, weight)


def test_a_batch_that_cannot_be_made_saves_what_there_is_and_asks_for_an_explanation(tmp_path):
    def batches(start, context):
        def check(batch, number):
            with tf.control_dependencies([tf.debugging.Assert(number < 5, ["bad image"])]):
                return {**batch, "label": tf.identity(batch["label"])}

        return tf.data.Dataset.zip(Setup.batches(12)(start), tf.data.Dataset.range(start, 12)).map(check)

    def explain(step):
        raise InputError(f"image of step {step}")

    with pytest.raises(InputError, match="image of step 5"):
        Setup(tmp_path).fit(12, batches, explain=explain)
    assert saved_step(tmp_path) == 5


def test_a_damaged_checkpoint_is_named_and_skipped_for_the_one_before(tmp_path, capsys):
    expected = Setup(tmp_path / "whole").fit(12)
    Setup(tmp_path / "cut").fit(8)
    (data,) = (tmp_path / "cut" / "checkpoints").glob("ckpt-8.data*")
    data.write_bytes(data.read_bytes()[:100])
    assert Setup(tmp_path / "cut").fit(12) == expected
    assert "ckpt-8 is damaged" in capsys.readouterr().out
    assert logged_steps(tmp_path / "cut") == logged_steps(tmp_path / "whole")


def test_what_a_loss_keeps_is_in_the_checkpoint(tmp_path):
    setup, kept = Setup(tmp_path), tf.Variable(3.0)
    parts = (setup.model, keras.optimizers.SGD(), [kept])
    Checkpoints(str(tmp_path / "kept"), *parts).save(3)
    kept.assign(5.0)
    Checkpoints(str(tmp_path / "kept"), *parts).restore()
    assert float(kept) == 3.0


@pytest.mark.parametrize("content", [None, "", "junk{{"])
def test_checkpoints_are_found_although_their_list_is_lost_or_damaged(tmp_path, content):
    Setup(tmp_path).fit(8)
    listing = tmp_path / "checkpoints" / "checkpoint"
    listing.unlink() if content is None else listing.write_text(content)
    assert Setup(tmp_path).checkpoints.restore() == 8


def test_half_a_row_at_the_end_of_the_log_is_dropped(tmp_path):
    setup = Setup(tmp_path)
    setup.fit(4)
    before = logged_steps(tmp_path)
    with open(tmp_path / "training.csv", "a") as log:
        log.write("junk\n5")
    Setup(tmp_path).fit(4)
    assert logged_steps(tmp_path) == before


def test_a_run_without_any_whole_checkpoint_is_refused(tmp_path):
    Setup(tmp_path).fit(3)
    for data in (tmp_path / "checkpoints").glob("*.data*"):
        data.write_bytes(b"")
    with pytest.raises(InputError, match=r"No checkpoint in .* is whole"):
        Setup(tmp_path).checkpoints.restore()
