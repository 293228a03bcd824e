"""Checkpoints of everything a run's future depends on."""

import os

import keras
import tensorflow as tf

from tfrank.checks import InputError


class Checkpoints:
    """Saves and restores a run's state in `folder`, the last two times.

    The state is: step, model, optimizer, the model's seed generators, and what the loss keeps.
    A save that is killed leaves the one before it valid.

    Attributes:
        step: variable, steps taken.
        best: variable, the best value of the metric that the best weights are chosen by.
    """

    def __init__(self, folder: str, model: keras.Model, optimizer: keras.optimizers.Optimizer, loss_state=()):
        self.folder = folder
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.best = tf.Variable(-1.0, trainable=False, name="best")
        # Keras counts seeds among a model's variables but TensorFlow does not track them.
        seeds = [v.value for v in model.variables if "seed_generator" in v.path]
        self._checkpoint = tf.train.Checkpoint(
            model=model,
            optimizer=optimizer,
            seeds=seeds,
            loss_state=list(loss_state),
            step=self.step,
            best=self.best,
        )
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=2)

    def restore(self) -> int:
        """Restores the latest state if there is one; the number of steps taken."""
        path = self._manager.latest_checkpoint
        if path:
            try:
                self._checkpoint.restore(path).assert_consumed()
            except (tf.errors.OpError, AssertionError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise InputError(
                    f"The checkpoint {path} cannot be restored ({reason}). Delete it, and its line in"
                    f" {os.path.join(self.folder, 'checkpoint')}, to go on from the one before."
                ) from None
        return int(self.step)

    def save(self) -> None:
        """Saves the state under its step, if it is not saved already."""
        latest = self._manager.latest_checkpoint
        if latest and latest.endswith(f"-{int(self.step)}"):
            return  # Written over in place, it would be lost if the process died meanwhile.
        try:
            self._manager.save(checkpoint_number=self.step)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"Cannot save a checkpoint to {self.folder} ({error}). The one before it is still good; the"
                " same command goes on from there."
            ) from None
