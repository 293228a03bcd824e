"""Training runs and the CSV file that keeps their results. A run that is in the file is not run again."""

import csv
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "docs", "experiments")
METRICS = ("recall_at_1", "map", "dists_intra", "dists_inter")
COLUMNS = (
    *("config", "changes", "seed", *METRICS, "recall_at_1_of_classes", "ap_of_classes"),
    *("seconds", "commit", "date"),
)


class Run(NamedTuple):
    """One training run.

    Attributes:
        config: file and loss, such as "omniglot.py:pnp".
        changes: values of config fields, such as `{"train.steps": 600}`.
        seed: `config.seed`.
    """

    config: str
    changes: Mapping[str, object]
    seed: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the run in the file."""
        return self.config, json.dumps(dict(sorted(self.changes.items()))), str(self.seed)


class Result(NamedTuple):
    """What a run reached on the test classes.

    Attributes:
        metrics: value of each of `METRICS`.
        recall_at_1, ap: `[classes]` means of the queries of each class, classes in ascending order.
        seconds: duration of the whole run.
    """

    metrics: dict[str, float]
    recall_at_1: np.ndarray
    ap: np.ndarray
    seconds: float


def read(path: str) -> dict[tuple[str, str, str], Result]:
    """The results in a file by `Run.key`; {} if there is no file."""
    if not os.path.exists(path):
        return {}
    with open(path, newline="") as file:
        return {
            (row["config"], row["changes"], row["seed"]): Result(
                {name: float(row[name]) for name in METRICS},
                np.array(row["recall_at_1_of_classes"].split(), float),
                np.array(row["ap_of_classes"].split(), float),
                float(row["seconds"]),
            )
            for row in csv.DictReader(file)
        }


def run_all(runs: Iterable[Run], path: str, fields: Mapping[str, object], *, jobs: int = 1) -> list[Result]:
    """Runs what is not in the file yet, adds it to the file, and returns the results in the order of `runs`.

    Args:
        path: the CSV file.
        fields: config fields that are not written to the file, such as the path of the data.
        jobs: runs at once, each on its share of the cores.

    Ends the program with the message of a run that failed; finished runs are in the file.
    """
    runs, done = list(runs), read(path)
    missing = {run.key: run for run in runs if run.key not in done}
    lock, count = threading.Lock(), itertools.count(1)

    def execute(run):
        row = _train(run, fields, max(1, os.cpu_count() // jobs))
        with lock:
            _append(path, row)
            place = f"{next(count)}/{len(missing)} {' '.join(run.key)}"
            print(f"{place}: {row['recall_at_1']:.4f} {row['map']:.4f} {row['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(execute, missing.values()))
    done = read(path)
    return [done[run.key] for run in runs]


def of_classes(results: Sequence[Result], metric: str) -> np.ndarray:
    """`[results, classes]` of a metric by name, "recall_at_1" or "ap"."""
    return np.stack([getattr(result, metric) for result in results])


def write_results(name: str, rows: Sequence[Mapping[str, object]], figure: Figure) -> None:
    """Writes a table and its figure, NAME.csv and NAME.png, and prints where they are."""
    path = os.path.join(RESULTS, name)
    with open(f"{path}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    figure.savefig(f"{path}.png", dpi=110)
    print(f"Table and figure: {path}.csv and .png", flush=True)


def _train(run: Run, fields: Mapping[str, object], threads: int) -> dict[str, object]:
    """Runs `train_main.py` in a process of its own and returns the row of its results."""
    with tempfile.TemporaryDirectory() as workdir:
        command = [sys.executable, "train_main.py", f"--config=configs/{run.config}", f"--workdir={workdir}"]
        for field, value in {**fields, **run.changes, "seed": run.seed}.items():
            values = value if isinstance(value, tuple | list) else [value]
            command += [f"--config.{field}={one}" for one in values]
        environment = os.environ | {"TF_NUM_INTRAOP_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - start
        if done.returncode:
            sys.exit(f"A run failed: {' '.join(command)}\n{done.stderr.strip()}")
        with open(os.path.join(workdir, "metrics.json")) as file:
            metrics = json.load(file)["trained"]
        (evaluation,) = os.listdir(os.path.join(workdir, "evaluation"))
        per_query = os.path.join(workdir, "evaluation", evaluation, "per_query", "leave_one_out.csv")
        recall, ap = _read_classes(per_query)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    config, changes, seed = run.key
    return {
        **{"config": config, "changes": changes, "seed": seed},
        **{name: round(metrics[name], 6) for name in METRICS},
        "recall_at_1_of_classes": " ".join(f"{value:.4f}" for value in recall),
        "ap_of_classes": " ".join(f"{value:.4f}" for value in ap),
        "seconds": round(seconds, 1),
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
    }


def _read_classes(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean Recall@1 and mean AP of each class."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    _, number = np.unique([int(row["label"]) for row in rows], return_inverse=True)
    sizes = np.bincount(number)
    recall, ap = (
        np.bincount(number, [float(row[name]) for row in rows]) / sizes for name in ("recall_at_1", "ap")
    )
    return recall, ap


def _append(path: str, row: dict[str, object]) -> None:
    """Adds a row with one write, so that a run that is killed leaves whole rows."""
    new = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)
