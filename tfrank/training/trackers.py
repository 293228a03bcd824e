"""Where the curves of a run go, beside training.csv: TensorBoard, MLflow, Weights & Biases."""

import glob
import importlib
import io
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import tensorflow as tf

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError

# The most that MLflow takes at a time.
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100
Rows = Mapping[int, Mapping[str, float]]


class Tracker:
    """Follows a run. A tracker overrides what it keeps."""

    def begin(self, step: int, config: str) -> None:
        """Opens the tracker to continue after `step`, 0 for a new run, whose config is given as text."""

    def scalars(self, rows: Rows) -> None:
        """Takes values by name of each of some steps."""

    def histogram(self, step: int, name: str, counts: np.ndarray) -> None:
        """Takes the counts of equal bins from -1 to 1."""

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Takes a PNG image; scalars of the same step follow."""

    def end(self, results: Mapping[str, float]) -> None:
        """Takes the metrics of the trained model on the test set; the run is over."""


class TensorBoard(Tracker):
    """Event files in `tensorboard/` of a run's folder. A resumed run first drops later events."""

    def __init__(self, folder: str):
        self._events = os.path.join(folder, "tensorboard")

    def begin(self, step: int, config: str) -> None:
        """Opens the event files; at the start of a run, writes the config."""
        for unfinished in glob.glob(os.path.join(glob.escape(self._events), "*.tmp")):
            os.remove(unfinished)
        for path in glob.glob(os.path.join(glob.escape(self._events), "events.*")):
            _cut_events(path, step if step else -1)
        self._writer = tf.summary.create_file_writer(self._events)
        if not step:
            with self._writer.as_default(step=0):
                tf.summary.text("config", f"```\n{config}\n```")

    def scalars(self, rows: Rows) -> None:
        """Writes values of steps."""
        with files.naming(self._events), self._writer.as_default():
            for step, values in rows.items():
                for name, value in values.items():
                    tf.summary.scalar(name, value, step=step)

    def histogram(self, step: int, name: str, counts: np.ndarray) -> None:
        """Writes the counts as TensorBoard's histograms are stored."""
        from tensorboard.plugins.histogram import metadata

        edges = tf.linspace(-1.0, 1.0, len(counts) + 1)
        bins = tf.stack([edges[:-1], edges[1:], tf.cast(counts, tf.float32)], axis=1)
        with files.naming(self._events), self._writer.as_default(step=step):
            tf.summary.write(name, bins, metadata=metadata.create_summary_metadata(name, ""))

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Writes an image."""
        with files.naming(self._events), self._writer.as_default(step=step):
            tf.summary.image(name, tf.io.decode_png(png, channels=3)[None])


class MLflow(Tracker):
    """A run of MLflow, in the store that MLflow's own environment variables name, else in mlflow.db.

    Steps that it holds already are not written again by a resumed run.
    """

    def __init__(self, folder: str, fields: Mapping[str, Any]):
        self._folder, self._fields = folder, fields

    def begin(self, step: int, config: str) -> None:
        """Makes a run with the config, or opens the one that was made."""
        import mlflow

        for name in ("mlflow", "alembic"):  # They would report each table of the store.
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client, self._logged = mlflow.MlflowClient(), -1
        self._run = _saved_run(self._folder, "mlflow") if step else ""
        if self._run:
            self._client.update_run(self._run, status="RUNNING")
            logged = self._client.get_metric_history(self._run, "loss")
            self._logged = max((metric.step for metric in logged), default=-1)
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tfrank")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        run = self._client.create_run(experiment, run_name=_name_of(self._folder))
        self._run = run.info.run_id
        params = [mlflow.entities.Param(name, str(value)) for name, value in self._fields.items()]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[first : first + _PARAMS_AT_ONCE])
        self._client.log_text(self._run, config, "config.json")
        _save_run(self._folder, "mlflow", self._run)

    def scalars(self, rows: Rows) -> None:
        """Writes values of steps that it does not hold yet."""
        self._log({step: values for step, values in rows.items() if step > self._logged})

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Writes an image as an artifact."""
        image = PIL.Image.open(io.BytesIO(png))
        self._client.log_image(self._run, image, f"{name}/{step:07d}.png")

    def end(self, results: Mapping[str, float]) -> None:
        """Writes the results as metrics `test.<name>`."""
        self._log({0: {f"test.{name}": value for name, value in results.items()}})
        self._client.set_terminated(self._run)

    def _log(self, rows):
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        metrics = [
            Metric(name, value, now, step) for step, values in rows.items() for name, value in values.items()
        ]
        for first in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[first : first + _METRICS_AT_ONCE])


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; with WANDB_MODE=offline, files in `wandb/` of the run's folder.

    A resumed run has the same id.
    """

    def __init__(self, folder: str, fields: Mapping[str, Any]):
        self._folder, self._fields, self._waiting = folder, fields, {}

    def begin(self, step: int, config: str) -> None:
        """Makes a run with the config, or continues the one that was made."""
        import wandb

        run = _saved_run(self._folder, "wandb") if step else ""
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "tfrank"),
            name=_name_of(self._folder),
            id=run or None,
            resume="allow",
            dir=self._folder,
            config=dict(self._fields),
            settings=wandb.Settings(console="off", silent=True),
        )
        _save_run(self._folder, "wandb", self._run.id)

    def scalars(self, rows: Rows) -> None:
        """Writes values of steps, with the histograms and pictures that wait for them."""
        for step, values in rows.items():
            self._run.log({**values, **self._waiting.pop(step, {})}, step=step)

    def histogram(self, step: int, name: str, counts: np.ndarray) -> None:
        """Keeps the counts until the scalars of the step: steps have to come in their order."""
        import wandb

        edges = np.linspace(-1, 1, len(counts) + 1)
        self._wait(step, name, wandb.Histogram(np_histogram=(np.asarray(counts), edges)))

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Keeps the image until the scalars of the step."""
        import wandb

        self._wait(step, name, wandb.Image(PIL.Image.open(io.BytesIO(png))))

    def end(self, results: Mapping[str, float]) -> None:
        """Writes the results to the summary of the run."""
        self._run.summary.update({f"test.{name}": value for name, value in results.items()})
        self._run.finish()

    def _wait(self, step, name, value):
        self._waiting.setdefault(step, {})[name] = value


class _Service(NamedTuple):
    title: str
    tracker: type[Tracker]
    package: str


# Those of other packages, which are imported when they are used. Each is also the name of the extra.
_SERVICES = {
    "mlflow": _Service("MLflow", MLflow, "mlflow"),
    "wandb": _Service("Weights & Biases", WeightsAndBiases, "wandb"),
}
TRACKERS = ("tensorboard", *_SERVICES)


class _Outside(Tracker):
    """A tracker that may fail when training has begun: training goes on without it, and a warning says so."""

    def __init__(self, title: str, tracker: Tracker):
        self._title, self._tracker = title, tracker

    def begin(self, step: int, config: str) -> None:
        """Raises InputError if the tracker cannot begin."""
        try:
            self._tracker.begin(step, config)
        except Exception as error:
            raise InputError(
                f"{self._title} cannot be used ({checks.reason(error)}). Take it out of `trackers`, or set"
                " it up as its own documentation says."
            ) from None

    def scalars(self, rows: Rows) -> None:
        """Passes on."""
        self._pass_on("scalars", rows)

    def histogram(self, step: int, name: str, counts: np.ndarray) -> None:
        """Passes on."""
        self._pass_on("histogram", step, name, counts)

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Passes on."""
        self._pass_on("picture", step, name, png)

    def end(self, results: Mapping[str, float]) -> None:
        """Passes on."""
        self._pass_on("end", results)

    def _pass_on(self, method, *arguments):
        try:
            getattr(self._tracker, method)(*arguments)
        except Exception as error:
            self._tracker = Tracker()
            logging.getLogger(__name__).warning(
                "Warning: %s failed (%s). Training goes on without it.", self._title, checks.reason(error)
            )


def check_installed(trackers: Iterable[str]) -> None:
    """Raises InputError for the first tracker whose package cannot be imported."""
    for name in trackers:
        if name in _SERVICES:
            try:
                importlib.import_module(_SERVICES[name].package)
            except ImportError as error:
                raise InputError(
                    f"`trackers` has {name!r}, which cannot be imported ({error}). Install the extra:"
                    f" pip install 'tfrank[{name}]'"
                ) from None


def build_trackers(trackers: Sequence[str], folder: str, fields: Mapping[str, Any]) -> list[Tracker]:
    """Returns trackers by name.

    Args:
        trackers: names out of `TRACKERS`.
        folder: the folder of the run.
        fields: the fields of the config by their full names.
    """
    own = [TensorBoard(folder)] if "tensorboard" in trackers else []
    services = (_SERVICES[name] for name in trackers if name in _SERVICES)
    return [*own, *(_Outside(one.title, one.tracker(folder, fields)) for one in services)]


def _name_of(folder):
    return os.path.basename(os.path.abspath(folder))


def _saved_run(folder, tracker):
    """Returns the id that a tracker gave the run in a folder; "" if there is none."""
    check = json_files.record({"run": json_files.text()})
    try:
        return json_files.read(os.path.join(folder, f"{tracker}.json"), check, "")["run"]
    except (FileNotFoundError, InputError):
        return ""


def _save_run(folder, tracker, run):
    files.write_json(os.path.join(folder, f"{tracker}.json"), {"run": run})


def _cut_events(path, last_step):
    """Drops events after the given step. A truncated file is read up to its last complete record."""
    records = tf.data.TFRecordDataset(path).ignore_errors(log_warning=False)
    with tf.io.TFRecordWriter(f"{path}.tmp") as writer:
        for record in records.as_numpy_iterator():
            if tf.compat.v1.Event.FromString(record).step <= last_step:
                writer.write(record)
    os.replace(f"{path}.tmp", path)
