"""Runs shared by the tests of training: whole ones as real processes, and tiny ones in this process."""

import collections
import hashlib
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from tests.command_lines import ROOT, CommandLine, Ended, accept_interrupt, run
from tfrank import PNPLoss
from tfrank.losses.core.batch_statistics import batch_statistics
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.log import BatchStatistics
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import build_step
from tfrank.training.trainer import Trainer, ValidationResult

# The digits run, cut down until it takes a second.
SMALL = (
    "--config=configs/digits.py",
    "--config.data.train=(0,1)",
    "--config.data.test=(8,9)",
    "--config.data.image_size=8",
    "--config.data.classes_per_batch=6",
    "--config.data.examples_per_class=4",
    "--config.model.filters=8",
    "--config.model.embedding_dim=8",
    "--config.train.log_every=2",
    "--config.train.checkpoint_every=3",
    "--config.evaluation.baselines=False",
)


def start(workdir, *flags, main="train_main.py", **options) -> CommandLine:
    """A small run."""
    return CommandLine(main, f"--workdir={workdir}", *SMALL, *flags, **options)


def start_alone(workdir, *flags, **options) -> subprocess.Popen:
    """The same as a process that imports everything itself, and takes the options of `subprocess.Popen`."""
    command = [sys.executable, "train_main.py", f"--workdir={workdir}", *SMALL, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {**pipes, "preexec_fn": accept_interrupt, **options}
    return subprocess.Popen(command, start_new_session=True, cwd=ROOT, **options)


def finish(workdir, *flags, main="train_main.py") -> Ended:
    """How a small run ends."""
    return run(main, f"--workdir={workdir}", *SMALL, *flags)


def state_hashes(workdir) -> dict[str, str]:
    """A hash of every tensor of the latest checkpoint: weights, optimizer slots, seeds, counters."""
    reader = tf.train.load_checkpoint(os.path.join(workdir, "checkpoints"))
    return {
        name: hashlib.sha256(reader.get_tensor(name).tobytes()).hexdigest()
        for name in reader.get_variable_to_shape_map()
        # How often it was saved, and on what machine, is no part of the state.
        if not name.startswith(("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter", "machine"))
    }


def saved_step(workdir) -> int:
    """The step of the latest checkpoint, 0 where there is none."""
    indices = pathlib.Path(workdir, "checkpoints").glob("ckpt-*.index")
    return max((int(path.stem.removeprefix("ckpt-")) for path in indices), default=0)


def logged_steps(workdir) -> list[str]:
    """The lines of training.csv of the steps taken, not of the start; none where there is no file yet."""
    path = pathlib.Path(workdir, "training.csv")
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return [line for line in lines if not line.startswith("0,")]


def events(workdir) -> dict[str, list[tuple[int, np.ndarray]]]:
    """What all event files hold together: by tag the steps and their tensors, in the order of the steps."""
    found = collections.defaultdict(list)
    for path in pathlib.Path(workdir, "tensorboard").iterdir():
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found[value.tag].append((event.step, tf.make_ndarray(value.tensor)))
    return {tag: sorted(rows, key=lambda row: row[0]) for tag, rows in found.items()}


def event_hashes(workdir) -> dict[str, list[tuple[int, str]]]:
    """The same, to be compared: by tag the steps, each with a hash of its tensor."""

    def digest(tensor):
        # Of text and images TensorFlow gives arrays of bytes objects.
        plain = tensor.tolist() if tensor.dtype == object else tensor.tobytes()
        return hashlib.sha256(repr(plain).encode()).hexdigest()

    return {tag: [(step, digest(tensor)) for step, tensor in rows] for tag, rows in events(workdir).items()}


def evaluation(recall_at_1: float) -> ValidationResult:
    """An evaluation that found this."""
    picture = tf.io.encode_png(tf.fill([2, 3, 3], tf.cast(255 * recall_at_1, tf.uint8))).numpy()
    metrics = {"recall_at_1": recall_at_1, "map": recall_at_1, "map_at_r": recall_at_1 / 2}
    return ValidationResult(metrics, picture)


class CountingLoss(PNPLoss):
    """A loss that depends on how often it was called, which it keeps."""

    def __init__(self):
        super().__init__(temperature=0.1)
        self.calls = tf.Variable(0.0, trainable=False)

    @property
    def variables(self):
        return [self.calls]

    def __call__(self, labels, embeddings, sample_weight=None):
        self.calls.assign_add(1.0)
        return super().__call__(labels, embeddings, sample_weight) * (1.0 + 0.1 * self.calls)


class Setup:
    """A run in this process: a model with batch norm and dropout, whose seeds have to be kept too.

    Args:
        folder: of the run, made if need be.
        labels: of each batch.
        constant: whether the model gives every image the same embedding.
        micro_batch_size: as in the config.
        slope, trackers: as of the trainer.
    """

    LABELS = (0, 0, 1, 1, 2, 2, 3, 4)

    def __init__(
        self,
        folder,
        *,
        learning_rate=1e-2,
        labels=LABELS,
        constant=False,
        micro_batch_size=0,
        slope=None,
        trackers=None,
    ):
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
        if constant:
            self.model.layers[-1].kernel.assign(tf.zeros([8, 4]))
            self.model.layers[-1].bias.assign([1.0, 0.0, 0.0, 0.0])
        loss, optimizer = CountingLoss(), build_optimizer(learning_rate=learning_rate)
        optimizer.build(self.model.trainable_variables)
        self.checkpoints = Checkpoints(str(folder / "checkpoints"), self.model, optimizer, loss.variables)
        strategy = tf.distribute.get_strategy()
        step = build_step(self.model, loss, optimizer, strategy=strategy, micro_batch_size=micro_batch_size)
        self.trainer = Trainer(
            str(folder),
            model=self.model,
            step=step,
            summary=lambda labels, embeddings: BatchStatistics(**batch_statistics(labels, embeddings)),
            slope=slope,
            checkpoints=self.checkpoints,
            strategy=strategy,
            batch_size=len(labels),
            micro_batch_size=micro_batch_size,
            trackers=trackers,
        )
        self.folder, self.labels = folder, labels

    def fit(self, steps, batches=None, **options):
        """Goes on to so many steps; the hashes of the state then."""
        self.checkpoints.restore()
        defaults = dict(
            checkpoint_every=4,
            log_every=2,
            explain=lambda step: None,
            save_best=self.model.save_weights,
        )
        self.trainer.fit(batches or self.batches(steps), steps=steps, **{**defaults, **options})
        return state_hashes(self.folder)

    def batches(self, steps, poison=None):
        """Batch t is a pure function of t; the images of step `poison` are NaN."""

        def batch(step):
            images = tf.random.stateless_uniform([len(self.labels), 4, 4, 3], tf.stack([step, step]), 0, 255)
            if poison is not None:
                images = tf.where(step == poison, np.nan, images)
            return {"image": images, "label": tf.constant(self.labels, tf.int64)}

        return lambda start, context=None: tf.data.Dataset.range(start, steps).map(batch)
