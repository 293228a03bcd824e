"""The training loop: progress, checkpoints, exact resume, the best weights."""

import csv
import math
import os
import signal
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfrank import files
from tfrank.checks import InputError
from tfrank.progress import Progress
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.step import Step


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM was received, and the state was saved."""


class Trainer:
    """Takes steps until there are enough of them, and can be killed at any moment.

    Started again on the same folder it goes on from the last checkpoint, and ends, on CPU, with the
    same weights bit for bit as if it had never stopped.

    Args:
        folder: for `checkpoints/`, `best.weights.h5` and `training.csv` (the loss of every step).
        model: what is trained.
        step: one step on a batch, see `build_step`.
        checkpoints: of the model's and the optimizer's state.
        strategy: that distributes the batches.
        batch_size: of all replicas together, to show speed.
        images_on_host: whether batches are left on the host, for a step that sends parts of them.
    """

    def __init__(
        self,
        folder: str,
        *,
        model: keras.Model,
        step: Step,
        checkpoints: Checkpoints,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        images_on_host: bool = False,
    ):
        self.best_weights = os.path.join(folder, "best.weights.h5")
        self._log = os.path.join(folder, "training.csv")
        self._model, self._step, self._checkpoints = model, step, checkpoints
        self._strategy, self._batch_size = strategy, batch_size
        self._input = tf.distribute.InputOptions(experimental_fetch_to_device=not images_on_host)
        self._pending = []  # Losses of steps that are still on the device.
        self._stop_signal = None

    def fit(
        self,
        batches: Callable[[int], tf.data.Dataset],
        *,
        steps: int,
        checkpoint_every: int,
        log_every: int,
        explain: Callable[[int], None],
        evaluate: Callable[[], float] | None = None,
        evaluate_every: int = 0,
    ) -> None:
        """Trains until `steps` steps have been taken, all runs together.

        Args:
            batches: given a step, the dataset of the batches from that step on.
            steps: total.
            checkpoint_every: steps between checkpoints; there is one at the end, and at Ctrl-C.
            log_every: steps between looks at the loss.
            explain: called with the step whose batch could not be made; raises an error that names
                the bad record.
            evaluate: gives the number, higher is better, by which the best weights are chosen.
            evaluate_every: steps between evaluations.

        Raises:
            InputError: the loss is not finite, or a batch cannot be made.
            Interrupted: Ctrl-C or SIGTERM; the state is saved.
        """
        start = int(self._checkpoints.step)
        self._cut_log(start)
        progress = Progress("step", steps, done=start)
        iterator = iter(self._strategy.experimental_distribute_dataset(batches(start), self._input))
        with _signals_to(self._on_signal):
            for step in range(start, steps):
                self._pending.append(self._step(self._next(iterator, step, explain)))
                self._checkpoints.step.assign_add(1)
                done = step + 1
                if done % log_every == 0 or done == steps:
                    text = f"loss {self._flush():.4f}  "
                    always = done == steps or done - start == log_every
                    progress.show(done, text, images_per_step=self._batch_size, always=always)
                if evaluate and (done % evaluate_every == 0 or done == steps):
                    self._keep_best(evaluate(), done, progress)
                if done % checkpoint_every == 0 or done == steps or self._stop_signal:
                    self._save()
                if self._stop_signal and done < steps:
                    progress.say(f"Stopped and saved at step {done}. The same command goes on from there.")
                    raise Interrupted

    def _next(self, iterator, step, explain):
        try:
            return next(iterator)
        except tf.errors.OpError:
            self._save()
            explain(step)
            raise

    def _flush(self) -> float:
        """Writes the pending losses to the log and returns the last; InputError if one is not finite."""
        losses = [float(loss) for loss in self._pending]
        self._pending.clear()
        first = int(self._checkpoints.step) - len(losses) + 1
        with open(self._log, "a", newline="") as log:
            csv.writer(log).writerows((first + k, repr(loss)) for k, loss in enumerate(losses))
        for k, loss in enumerate(losses):
            if not math.isfinite(loss):
                self._diverged(f"The loss is {loss} at step {first + k}")
        self._last_loss = losses[-1] if losses else self._last_loss
        return self._last_loss

    def _save(self):
        """Logs and saves all steps taken; InputError where loss or weights are not finite."""
        self._flush()
        for variable in self._model.variables:
            if not np.all(np.isfinite(variable.numpy())):
                self._diverged(
                    f"Weights of {variable.path} are not finite at step {int(self._checkpoints.step)}"
                )
        self._checkpoints.save()

    def _diverged(self, what):
        kept = f" The last good checkpoint is kept in {self._checkpoints.folder}."
        raise InputError(
            f"{what}.{kept if self._checkpoints.any_saved else ''} Try a lower learning rate, a higher"
            " temperature of the loss, or a lower alpha, in another --workdir."
        )

    def _keep_best(self, value, step, progress):
        best = float(self._checkpoints.best)
        progress.say(
            f"step {step}: validation {value:.4f}" + (f" (best before: {best:.4f})" if best >= 0 else "")
        )
        if value > best:
            temporary = self.best_weights.replace(".weights.h5", ".tmp.weights.h5")
            self._model.save_weights(temporary, overwrite=True)
            os.replace(temporary, self.best_weights)
            self._checkpoints.best.assign(value)

    def _cut_log(self, start):
        """Leaves in the log exactly the steps before `start`: a killed run may have logged more."""
        rows = []
        if start and os.path.exists(self._log):
            with open(self._log, newline="") as log:
                # A killed process may have left half a row behind.
                rows = [row for row in csv.reader(log) if len(row) == 2 and row[0].isdigit()]
            rows = [row for row in rows if int(row[0]) <= start]
        with files.atomic_write(self._log, "w") as log:
            csv.writer(log).writerows([("step", "loss"), *rows])
        self._last_loss = float(rows[-1][1]) if rows else math.nan

    def _on_signal(self, number, _):
        if self._stop_signal:
            raise KeyboardInterrupt
        self._stop_signal = number


class _signals_to:
    """Sends Ctrl-C and SIGTERM to a handler while it lasts."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, handler):
        self._handler = handler

    def __enter__(self):
        self._before = {number: signal.signal(number, self._handler) for number in self.SIGNALS}

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)
