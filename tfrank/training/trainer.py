"""The training loop: progress, checkpoints, exact resume, the best weights."""

import contextlib
import datetime
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.common.progress import Progress
from tfrank.training.checkpoints import Checkpoints, replace_weights, saved_checkpoints
from tfrank.training.log import BatchStatistics, TrainingLog
from tfrank.training.step import Step
from tfrank.training.trackers import Tracker

# Below this spread all embeddings of a batch are nearly one point; similarities are above 0.9999.
COLLAPSED_SPREAD = 0.01
# If the slope of the loss at the start of a run is below this, see `loss_slope`, it learns next to nothing.
FLAT_SLOPE = 0.05
# A loss below this leaves next to nothing to learn: all images are ranked rightly.
NOTHING = 1e-3
# mAP counts every positive, so it varies less between draws of a few validation classes than Recall@1.
CHOSEN_BY = "map"


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM, once the state is saved."""


class ValidationResult(NamedTuple):
    """The result of an evaluation of the validation part during training.

    Attributes:
        metrics: values by name; the one named `CHOSEN_BY` decides which weights are best.
        picture: a PNG of queries and their nearest neighbours; None if they have no pictures.
    """

    metrics: Mapping[str, float]
    picture: bytes | None


class Best(NamedTuple):
    """The best weights of a run.

    Attributes:
        step: number of steps after which they were found; 0 for the model before training.
        value: their validation score.
        start: the validation score of the model before training.
    """

    step: int
    value: float
    start: float


def best_weights_of(folder: str) -> str:
    """The path of a run's best weights."""
    return os.path.join(folder, "best.weights.h5")


class Trainer:
    """Trains for a given number of steps, and can be killed at any moment.

    Started again on the same folder, it resumes from the last checkpoint. On the same CPU with the same
    number of threads, the final weights equal those of an uninterrupted run bit for bit.

    Args:
        folder: for `checkpoints/`, `best.weights.h5` and the files of `TrainingLog`.
        model: the model to train.
        step: takes one step on a batch, see `build_step`.
        summary: computes batch statistics from labels and embeddings, in replica context, equal on every
            replica.
        slope: computes the slope of the loss from the same arguments, see `loss_slope`; called once, at the
            start of a run. None: not computed.
        checkpoints: the checkpoints of the model's and the optimizer's state.
        strategy: the strategy that distributes the batches.
        batch_size: batch size of all replicas together.
        micro_batch_size: if above 0, batches stay on the host and each image is embedded twice.
        trackers: what follows the run, beside training.csv. None: TensorBoard.
        advice: what to do if no image of a batch has another of its class, a sentence.

    Attributes:
        best_weights: path of the best weights.
        done: number of steps taken.
    """

    def __init__(
        self,
        folder: str,
        *,
        model: keras.Model,
        step: Step,
        summary: Callable[..., BatchStatistics],
        slope: Callable[..., tf.Tensor] | None = None,
        checkpoints: Checkpoints,
        strategy: tf.distribute.Strategy,
        batch_size: int,
        micro_batch_size: int = 0,
        trackers: Sequence[Tracker] | None = None,
        advice: str = "Draw several images of each class.",
    ):
        self.best_weights = best_weights_of(folder)
        passes = 2 if micro_batch_size else 1
        self._log = TrainingLog(folder, images_per_step=batch_size, forward_passes=passes, trackers=trackers)
        self._model, self._step, self._checkpoints = model, step, checkpoints
        self._strategy, self._batch_size, self._advice = strategy, batch_size, advice
        self._input = tf.distribute.InputOptions(experimental_fetch_to_device=not micro_batch_size)
        self._pending = []  # Losses of steps that are still on the device.
        self.done, self._stop_signal, self._said = 0, None, set()
        self._looked = False

        def on_replicas(function):
            @tf.function(autograph=False)
            def first(labels, embeddings):
                values = strategy.run(function, args=(labels, embeddings))
                return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)

            return first

        self._summarize = on_replicas(summary)
        self._slope = on_replicas(slope) if slope else None

    def fit(
        self,
        batches: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
        *,
        steps: int,
        checkpoint_every: int,
        log_every: int,
        explain: Callable[[int], None],
        evaluate: Callable[[], ValidationResult] | None = None,
        evaluate_every: int = 0,
        patience: int = 0,
        save_best: Callable[[str], None] | None = None,
        config: str = "",
    ) -> None:
        """Trains until `steps` steps have been taken, counting those before a restart.

        Args:
            batches: given a step and the context of this machine, returns the dataset of its devices' shares
                of the batches from that step on.
            steps: total number of steps.
            checkpoint_every: steps between checkpoints; one is also saved at the end and at Ctrl-C.
            log_every: steps between logs of the loss and the batch statistics.
            explain: called with the step whose batch failed; raises an error that names the bad record.
            evaluate: evaluates the current weights; None on a machine that leaves this to another.
            evaluate_every: steps between evaluations; 0 for none. The first evaluation precedes the first
                step, so that the initial model is a candidate for the best weights.
            patience: training ends early after this many evaluations in a row without improvement; 0: never.
            save_best: writes the weights measured by `evaluate` to a path.
            config: text of the config, for the trackers.

        Raises:
            InputError: the loss is not finite, or a batch cannot be read.
            Interrupted: Ctrl-C or SIGTERM; the state is saved.
        """
        start = self.done = int(self._checkpoints.step)
        self._looked = start > 0
        self._log.begin(start, config)
        progress = Progress("step", steps, done=start)
        if not start and evaluate:
            self._forget_best()
            if evaluate_every:
                self._keep_best(evaluate(), 0, progress, save_best)
        # Patience in steps. It is compared with the checkpointed best step, so a resumed run ends at the step
        # at which an uninterrupted one would.
        patience *= evaluate_every
        if self._is_exhausted(patience):
            if start < steps:
                progress.say(
                    f"{self._ended(patience)} No more steps are taken. To take more, train in another folder"
                    " with a higher patience."
                )
            return
        iterator = iter(self._distribute(lambda context: batches(start, context)))
        with _signals_to(self._on_signal):
            for step in range(start, steps):
                batch = self._next(iterator, step, explain)
                loss, embeddings = self._step(batch)
                self._pending.append(loss)
                done = self.done = step + 1
                # Equal on all machines although only one evaluates: batch statistics need all of them.
                evaluates = evaluate_every and (done % evaluate_every == 0 or done == steps)
                looks = done % log_every == 0 or done == steps or evaluates
                if looks:
                    seen = self._look(batch["label"], embeddings, done, progress)
                    always = done == steps or done - start == log_every
                    progress.show(done, seen, images_per_step=self._batch_size, always=always)
                if evaluates and evaluate:
                    self._keep_best(evaluate(), done, progress, save_best)
                if looks:
                    self._log.flush()
                ends = done == steps or self._is_exhausted(patience)
                if done % checkpoint_every == 0 or ends or self._stop_signal:
                    self._save()
                if ends:
                    break
                if self._stop_signal:
                    progress.say(f"Stopped and saved at step {done}. The same command goes on from there.")
                    raise Interrupted
        if self.done < steps:
            progress.say(self._ended(patience))

    def _forget_best(self):
        """Removes the best weights of an earlier run in this folder, which is started over."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.best_weights)

    @property
    def best(self) -> Best | None:
        """The best weights so far; None if nothing was evaluated."""
        value = float(self._checkpoints.best)
        if value < 0:
            return None
        return Best(int(self._checkpoints.best_step), value, float(self._checkpoints.start))

    def _is_exhausted(self, patience):
        """Whether the last improvement is at least `patience` steps ago; False for a patience of 0."""
        return bool(patience) and self.done - int(self._checkpoints.best_step) >= patience

    def _ended(self, patience):
        return f"Ended at step {self.done:,}: no better validation for {patience:,} steps."

    def report(self) -> str:
        """Reports the cost of the steps so far (as in Revaud et al., Table 1) and the path of the curves."""
        cost = self._log.save_cost(self.done)
        time_taken = datetime.timedelta(seconds=round(cost.wall_seconds))
        return (
            f"{cost.updates:,} updates, {cost.forward_images:,} images forward,"
            f" {cost.backward_images:,} backward, {time_taken} of training; curves: {self._log.draw()}"
        )

    def end(self, results: Mapping[str, float]) -> None:
        """Gives the metrics of the trained model on the test set to the trackers, and closes them."""
        self._log.end(results)

    def _distribute(self, batches_of):
        return self._strategy.distribute_datasets_from_function(batches_of, self._input)

    def time_steps(
        self,
        batches: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        explain: Callable[[int], None] = lambda step: None,
    ) -> list[float]:
        """Takes a step on each batch without saving; returns the seconds of each step, reading included.

        Args:
            batches: given the context of this machine, returns the dataset of the batches.
            explain: as in `fit`.
        """
        seconds, iterator = [], iter(self._distribute(batches))
        while True:
            started = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                return seconds
            except tf.errors.OpError:
                explain(len(seconds))
                raise
            float(self._step(batch).loss)
            seconds.append(time.monotonic() - started)

    def _next(self, iterator, step, explain):
        try:
            return next(iterator)
        except tf.errors.OpError:
            self._save()
            explain(step)
            raise

    def _look(self, labels, embeddings, step, progress):
        """Logs pending losses and batch statistics; returns the text for the progress line."""
        loss = self._fetch()
        summary = BatchStatistics(*(value.numpy() for value in self._summarize(labels, embeddings)))
        self._log.add_summary(step, summary)
        self._warn(summary, progress)
        # Checked only at the start: at the end of a good run the loss is flat too. Flat at zero is as good.
        if self._slope and not self._looked and abs(loss) >= NOTHING:
            self._warn_of_flat_loss(float(self._slope(labels, embeddings)), progress)
        self._looked = True
        return (
            f"loss {loss:.4f}  batch R@1 {summary.batch_recall_at_1:.3f}"
            f"  valid queries {summary.valid_queries:.0%}  "
        )

    def _fetch(self) -> float:
        """Logs the pending losses and returns the last; raises InputError if one is not finite."""
        losses = [float(loss) for loss in self._pending]
        self._pending.clear()
        first = self.done - len(losses) + 1
        for step, loss in enumerate(losses, first):
            self._log.add(step, {"loss": loss})
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                self._log.flush()
                self._diverged(f"The loss is {loss} at step {step}")
        return losses[-1] if losses else math.nan

    def _warn(self, summary, progress):
        """Prints a warning, once each, if the batch statistics show that nothing is learnt."""
        if summary.valid_queries == 0 and "valid_queries" not in self._said:
            self._said.add("valid_queries")
            progress.say(
                "Warning: no image of this batch has another of its class, so nothing is learnt from it."
                f" {self._advice}"
            )
        if summary.spread < COLLAPSED_SPREAD and "spread" not in self._said:
            self._said.add("spread")
            progress.say(
                f"Warning: the model has collapsed: all embeddings of this batch are nearly one point (spread"
                f" {summary.spread:.1e}; 1 is the most). Try a lower learning rate, warm-up, other initial"
                " weights, or a higher temperature of the loss."
            )

    def _warn_of_flat_loss(self, slope, progress):
        if slope < FLAT_SLOPE:
            progress.say(
                f"Warning: the loss is flat (slope {slope:.1e}): hardly any pair has a"
                " gradient, so next to nothing is learnt. Try a temperature nearer to the paper's, a warm-up"
                " (warmup_steps=500 of PNP), or the loss multi_similarity."
            )

    def _save(self):
        """Logs and saves all steps taken; raises InputError if the loss or the weights are not finite."""
        self._fetch()
        self._log.flush()
        for variable in self._model.variables:
            if not np.all(np.isfinite(variable.numpy())):
                self._diverged(f"Weights of {variable.path} are not finite at step {self.done}")
        self._checkpoints.save(self.done)
        self._log.save_cost(self.done)

    def _diverged(self, what):
        folder = self._checkpoints.folder
        kept = f" The last good checkpoint is kept in {folder}." if saved_checkpoints(folder) else ""
        raise InputError(
            f"{what}.{kept} Try a lower learning rate, a higher"
            " temperature of the loss, or a lower alpha, in another folder."
        )

    def _keep_best(self, result, step, progress, save_best):
        value, best = result.metrics[CHOSEN_BY], float(self._checkpoints.best)
        before = (
            f" (best before: {best:.4f} at step {int(self._checkpoints.best_step):,})" if best >= 0 else ""
        )
        recall = result.metrics["recall_at_1"]
        progress.say(f"step {step:,}: validation Recall@1 {recall:.4f}, mAP {value:.4f}{before}")
        self._log.add(step, {f"validation_{name}": value for name, value in result.metrics.items()})
        if result.picture:
            self._log.picture(step, "validation_neighbors", result.picture)
        # In float32, as the best is kept: a score that rounding lowers would be better than itself.
        if np.float32(value) > best:
            replace_weights(self.best_weights, save_best, self._model.variables)
            self._checkpoints.best.assign(value)
            self._checkpoints.best_step.assign(step)
        if not step:
            self._checkpoints.start.assign(value)

    def _on_signal(self, number, _):
        if self._stop_signal:
            raise KeyboardInterrupt
        self._stop_signal = number


class _signals_to:
    """Context manager that directs Ctrl-C and SIGTERM to a handler."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, handler):
        self._handler = handler

    def __enter__(self):
        self._before = {number: signal.signal(number, self._handler) for number in self.SIGNALS}

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)
