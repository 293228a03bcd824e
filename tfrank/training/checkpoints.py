"""Checkpoints of everything a run's future depends on."""

import glob
import json
import os
import shutil
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.training import machine


class _Machine(tf.train.experimental.PythonState):
    """The description of the machine that saved a checkpoint, see `machine.describe`."""

    def __init__(self):
        self.description = machine.describe()

    def serialize(self) -> str:
        return json.dumps(self.description)

    def deserialize(self, text: str) -> None:
        self.description = json.loads(text)


class Checkpoints:
    """Saves and restores a run's state in `folder`, the last two times.

    The state is: step, model, optimizer, the model's seed generators, what the loss keeps, the average of the
    weights, and on what machine it came about. A save that is killed leaves the one before it valid.

    Args:
        folder: where they are.
        model, optimizer, loss_state, average: the state.
        writes: whether `save` saves; of several machines that share a folder, one does.

    Attributes:
        step: variable, steps taken.
        best, best_step: variables, the highest validation score so far, -1 before the first, and its step.
        start: variable, the validation score of the model before training, -1 where there is none.
    """

    def __init__(
        self,
        folder: str,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        loss_state: Sequence[tf.Variable] = (),
        average: Sequence[tf.Variable] = (),
        writes: bool = True,
    ):
        self.folder = folder
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.best = tf.Variable(-1.0, trainable=False, name="best")
        self.best_step = tf.Variable(0, dtype=tf.int64, trainable=False, name="best_step")
        self.start = tf.Variable(-1.0, trainable=False, name="start")
        self._machine = _Machine()
        # Keras counts seeds among a model's variables but TensorFlow does not track them.
        seeds = [v.value for v in model.variables if "seed_generator" in v.path]
        self._checkpoint = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            seeds=seeds,
            loss_state=list(loss_state),
            average=list(average),
            step=self.step,
            best=self.best,
            best_step=self.best_step,
            start=self.start,
            machine=self._machine,
        )
        self._saved_step = None
        self._manager = None
        if writes:
            _remove_damaged_list(folder)
            for unfinished in glob.glob(os.path.join(glob.escape(folder), "ckpt-*_temp")):
                shutil.rmtree(unfinished)
            self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=2)

    def restore(self) -> int:
        """Restores the latest state that is whole, if there is one; the number of steps taken.

        Warns where this machine computes in another order than the one that saved the state.
        """
        now = machine.describe()
        if not _restore_latest(self._checkpoint, self.folder):
            return 0
        changed = machine.differences(self._machine.description, now)
        if changed:
            print(
                "Warning: the run goes on, but not bit for bit as it would have: this machine adds numbers up"
                f" in another order ({changed})."
            )
        self._machine.description = now
        self._saved_step = int(self.step)
        return self._saved_step

    def save(self, step: int) -> None:
        """Saves the state after `step` steps, if it is not saved already."""
        # One that is there, written over in place, would be lost if the process died meanwhile.
        if not self._manager or self._saved_step == step:
            return
        self.step.assign(step)
        try:
            with files.naming(os.path.join(self.folder, f"ckpt-{step}")):
                self._manager.save(checkpoint_number=self.step)
        except (InputError, OSError) as error:
            before = " The one before it is still good; the same command goes on from there."
            kept = before if saved_checkpoints(self.folder) else ""
            raise InputError(f"No checkpoint was saved. {error}{kept}") from None
        self._saved_step = step


def _restore_latest(checkpoint: tf.train.Checkpoint, folder: str) -> bool:
    """Restores the latest state that is whole; whether there is any checkpoint."""
    paths = saved_checkpoints(folder)
    for path in reversed(paths):
        try:
            # A model alone takes part of what is saved, on purpose.
            checkpoint.restore(path).assert_existing_objects_matched().expect_partial()
            return True
        except (tf.errors.OpError, AssertionError, IndexError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            what = "is damaged" if glob.glob(f"{glob.escape(path)}.data-*") else "lacks a file"
            print(f"Warning: the checkpoint {path} {what} ({reason}), taking the one before it.")
    if paths:
        raise InputError(f"No checkpoint in {folder} is whole. Delete the folder to begin anew.")
    return False


def saved_checkpoints(folder: str) -> list[str]:
    """The paths of the checkpoints in a folder, the latest last."""
    indexes = glob.glob(os.path.join(glob.escape(folder), "ckpt-*.index"))
    paths = [path.removesuffix(".index") for path in indexes]
    return sorted(paths, key=lambda path: int(path.rsplit("-", 1)[1]))


def _remove_damaged_list(folder):
    """The list of checkpoints may be damaged while they are there themselves; without it they are found."""
    listing = os.path.join(folder, "checkpoint")
    try:
        whole = tf.train.get_checkpoint_state(folder) is not None
    except ValueError:
        whole = False
    if not whole and os.path.exists(listing):
        os.remove(listing)


def restore_model(folder: str, model: keras.Model, average: Sequence[tf.Variable] = ()) -> int:
    """Gives a model its weights of the latest whole checkpoint in `folder`; its step, 0 where there is none.

    Args:
        folder: of `Checkpoints`.
        model: as it was trained.
        average: the variables of the model that get the average of the weights, where one was kept.
    """
    # An average is kept of all that inference uses.
    weights = {"average": list(average)} if average else {"model": model}
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0, dtype=tf.int64), **weights)
    # Mirrored where it is made in a strategy's scope, which int() does not take.
    return int(checkpoint.step.numpy()) if _restore_latest(checkpoint, folder) else 0
