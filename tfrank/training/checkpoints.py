"""Checkpoints of the complete state of a run."""

import glob
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.training import machine

_LOG = logging.getLogger(__name__)


class _Machine(tf.train.experimental.PythonState):
    """Checkpointable description of the machine that saved the checkpoint, see `machine.describe`."""

    def __init__(self):
        self.description = machine.describe()

    def serialize(self) -> str:
        return json.dumps(self.description)

    def deserialize(self, text: str) -> None:
        check = json_files.dict_of(json_files.anything)
        self.description = json_files.parse(text, check, "The checkpoint", "Train again.")


class Checkpoints:
    """Saves and restores a run's state in `folder`, which keeps the last two checkpoints.

    The state consists of: step, model, optimizer, the model's seed generators, the state of the loss, the
    averaged weights, and a description of the machine. If a save is killed, the previous checkpoint stays
    valid.

    Args:
        folder: the folder of the checkpoints.
        model, optimizer, loss_state, average: the state.
        writes: whether `save` writes; exactly one of several machines that share a folder should.

    Attributes:
        step: variable, number of steps taken.
        best, best_step: variables, the highest validation score so far (-1 before the first) and its step.
        start: variable, the validation score of the model before training; -1 if there is none.
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
        # Keras lists seeds among a model's variables, but TensorFlow does not track them.
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
        """Restores the latest undamaged checkpoint, if there is one; returns the number of steps taken.

        Logs a warning if this machine sums in another order than the one that saved the state.
        """
        now = machine.describe()
        if not _restore_latest(self._checkpoint, self.folder):
            return 0
        changed = machine.differences(self._machine.description, now)
        if changed:
            _LOG.warning(
                "Warning: the run goes on, but not bit for bit as it would have: this machine adds numbers up"
                " in another order (%s).",
                changed,
            )
        self._machine.description = now
        self._saved_step = int(self.step)
        return self._saved_step

    def save(self, step: int) -> None:
        """Saves the state after `step` steps, unless it is saved already."""
        # Do not overwrite an existing checkpoint: a crash meanwhile would lose it.
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
    """Restores the latest undamaged checkpoint; returns whether there is a checkpoint at all."""
    paths = saved_checkpoints(folder)
    for path in reversed(paths):
        try:
            # `expect_partial`: restoring a model alone uses only a part of the checkpoint.
            with files.without_wildcards(folder) as readable:
                found = checkpoint.restore(os.path.join(readable, os.path.basename(path)))
            found.assert_existing_objects_matched().expect_partial()
            return True
        except (tf.errors.OpError, AssertionError, IndexError, ValueError) as error:
            reason = checks.reason(error)
            what = "is damaged" if glob.glob(f"{glob.escape(path)}.data-*") else "lacks a file"
            _LOG.warning("Warning: the checkpoint %s %s (%s), taking the one before it.", path, what, reason)
    if paths:
        raise InputError(f"All checkpoints in {folder} are damaged. Delete the folder to start over.")
    return False


def saved_checkpoints(folder: str) -> list[str]:
    """The paths of the checkpoints in a folder, latest last."""
    indexes = glob.glob(os.path.join(glob.escape(folder), "ckpt-*.index"))
    paths = [path.removesuffix(".index") for path in indexes]
    return sorted(paths, key=lambda path: int(path.rsplit("-", 1)[1]))


def _remove_damaged_list(folder):
    """Deletes a damaged `checkpoint` index file; the checkpoints themselves are found by name."""
    listing = os.path.join(folder, "checkpoint")
    try:
        whole = tf.train.get_checkpoint_state(folder) is not None
    except ValueError:
        whole = False
    if not whole and os.path.exists(listing):
        os.remove(listing)


def replace_weights(path: str, save: Callable[[str], None], variables: Sequence[keras.Variable]) -> None:
    """Saves weights to a file, whole or not at all.

    Args:
        path: path of the file, `.weights.h5`.
        save: saves the weights to a path.
        variables: what is saved.
    """
    temporary = path.replace(".weights.h5", ".tmp.weights.h5")
    # Without free space, HDF5 may kill the process.
    size = sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)
    files.check_room(temporary, 2 * size + 2**20)
    with files.naming(temporary):
        save(temporary)
    os.replace(temporary, path)


def restore_model(folder: str, model: keras.Model, average: Sequence[tf.Variable] = ()) -> int:
    """Restores a model's weights from the latest undamaged checkpoint; returns its step, 0 if there is none.

    Args:
        folder: the folder of `Checkpoints`.
        model: the model, built as in training.
        average: the variables of the model that receive the averaged weights, if the run averaged them.
    """
    # The average covers all variables that inference uses, so the model itself need not be restored.
    weights = {"average": list(average)} if average else {"model": model}
    checkpoint = tf.train.Checkpoint(step=tf.Variable(0, dtype=tf.int64), **weights)
    # In a strategy's scope the variable is mirrored, which int() does not accept.
    return int(checkpoint.step.numpy()) if _restore_latest(checkpoint, folder) else 0
