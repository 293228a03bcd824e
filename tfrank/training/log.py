"""The log of a run: training.csv, trackers such as TensorBoard, cost.json, and a picture at the end.

A killed process may have logged steps beyond its last checkpoint. A resumed run drops these first, so every
step is logged once.
"""

import csv
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.training.trackers import TensorBoard, Tracker

COLUMNS = ("step", "loss", "batch_recall_at_1", "valid_queries", "validation_recall_at_1")


class BatchStatistics(NamedTuple):
    """Scalars and two histograms of a batch, see `tfrank.losses.core.batch_statistics`."""

    batch_recall_at_1: Any
    valid_queries: Any
    positive_pair_similarity: Any
    negative_pair_similarity: Any
    spread: Any
    positive_histogram: Any
    negative_histogram: Any


class Cost(NamedTuple):
    """The cost of a run: the columns of Table 1 of Revaud et al. (arXiv 1906.07589)."""

    forward_images: int
    backward_images: int
    updates: int
    wall_seconds: float


class TrainingLog:
    """`training.csv`, `cost.json` and `training.png` in a run's folder; trackers get the same values.

    Args:
        folder: the folder of the run.
        images_per_step: number of images in the global batch.
        forward_passes: number of times that a step embeds each image.
        trackers: what else follows the run. None: TensorBoard.
    """

    def __init__(
        self,
        folder: str,
        *,
        images_per_step: int,
        forward_passes: int = 1,
        trackers: Sequence[Tracker] | None = None,
    ):
        self._folder = folder
        self._csv = os.path.join(folder, "training.csv")
        self._images, self._forward_passes = images_per_step, forward_passes
        self._trackers = [TensorBoard(folder)] if trackers is None else trackers
        self._rows = {}

    def begin(self, step: int, config: str) -> None:
        """Opens the log to continue after `step`; `config` is the config as text."""
        self._start, self._seconds = time.monotonic(), 0.0
        rows = _read_rows(self._csv, step)
        with files.atomic_write(self._csv, "w") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        for tracker in self._trackers:
            tracker.begin(step, config)
        if step:
            self._seconds = _seconds_of(self._cost)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values of a step. `flush` gives all to the trackers, and the CSV those with a column."""
        self._rows.setdefault(step, {}).update(values)

    def add_summary(self, step: int, summary: BatchStatistics) -> None:
        """Adds the statistics of a step's batch, given as NumPy arrays."""
        values = summary._asdict()
        self.add(step, {name: float(value) for name, value in values.items() if value.ndim == 0})
        for name, value in values.items():
            if value.ndim:
                for tracker in self._trackers:
                    tracker.histogram(step, name, value)

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Logs a PNG image."""
        for tracker in self._trackers:
            tracker.picture(step, name, png)

    def flush(self) -> None:
        """Writes all pending values."""
        with files.naming(self._csv), open(self._csv, "a", newline="") as file:
            for step, values in self._rows.items():
                cells = (repr(values[name]) if name in values else "" for name in COLUMNS[1:])
                csv.writer(file).writerow([step, *cells])
        for tracker in self._trackers:
            tracker.scalars(self._rows)
        self._rows = {}

    def end(self, results: Mapping[str, float]) -> None:
        """Gives the metrics on the test set to the trackers, and closes them."""
        for tracker in self._trackers:
            tracker.end(results)

    def save_cost(self, step: int) -> Cost:
        """Writes and returns the cost of `step` steps."""
        cost = Cost(
            forward_images=step * self._images * self._forward_passes,
            backward_images=step * self._images,
            updates=step,
            wall_seconds=round(self._seconds + time.monotonic() - self._start, 1),
        )
        files.write_json(self._cost, cost._asdict())
        return cost

    def draw(self) -> str:
        """Draws loss and Recall@1 against the step; returns the path of the picture."""
        path = os.path.join(self._folder, "training.png")
        with open(self._csv, newline="") as file:
            rows = list(csv.DictReader(file))
        with files.atomic_write(path) as file:
            _draw(file, rows)
        return path

    @property
    def _cost(self):
        return os.path.join(self._folder, "cost.json")


def _read_rows(path, last_step):
    if not last_step or not os.path.exists(path):
        return []
    with open(path, newline="", errors="replace") as file:
        # A killed process may have left an incomplete row.
        rows = [row for row in csv.reader(file) if len(row) == len(COLUMNS) and row[0].isdigit()]
    return [row for row in rows if int(row[0]) <= last_step]


def _seconds_of(path):
    """Returns the wall time in a cost file; 0 if it is missing or damaged."""
    check = json_files.record({"wall_seconds": json_files.real(0)}, others=True)
    try:
        return float(json_files.read(path, check, "")["wall_seconds"])
    except (FileNotFoundError, InputError):
        return 0.0


def _draw(file, rows):
    # Not pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def curve(column):
        points = [(int(row["step"]), float(row[column])) for row in rows if row[column]]
        return list(zip(*points)) or [(), ()]

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    left.plot(*curve("loss"), color="tab:grey", linewidth=0.8, label="loss")
    left.set(xlabel="step", ylabel="loss")
    right = left.twinx()
    right.plot(*curve("batch_recall_at_1"), color="tab:blue", label="Recall@1, training batch")
    if curve("validation_recall_at_1")[0]:
        right.plot(
            *curve("validation_recall_at_1"), "o-", color="tab:green", label="Recall@1, validation classes"
        )
    right.set(ylabel="Recall@1", ylim=(-0.02, 1.02))
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(file, format="png", dpi=120)
