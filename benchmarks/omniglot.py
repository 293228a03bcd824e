"""Recall@1 and mAP of each loss on Omniglot: means over seeds, and paired differences.

    python -m benchmarks.omniglot --source=images_background_small1.zip [--seeds=5] [--folder=runs/omniglot]
                                  [--jobs=1]

Each run is `train_main.py --config=configs/omniglot.py` in a process of its own; those that are done
are not done again. With `--jobs=2` two run at once, each on half of the cores. Differences are to the first
loss, seed by seed, with the standard error of their mean.
"""

import itertools
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from absl import app, flags

from benchmarks.runs import run
from experiments.recipes import LOSSES

_SOURCE = flags.DEFINE_string("source", None, "Path of the Omniglot archive or folder.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds, 0 and up.", lower_bound=2)
_JOBS = flags.DEFINE_integer("jobs", 1, "Runs at once.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "runs/omniglot", "Where the runs go.")

# The recipe of each row, and what it changes.
RUNS = LOSSES | {
    "PNP-Dq, memory": ("pnp", {"train.memory_size": 1024, "train.memory_warm_up": 100}),
    "Triplet, hard": ("triplet", {"loss.mining": "hard"}),
}


def train(name: str, seed: int) -> dict:
    """The metrics of one run and the seconds it took, start-up and evaluation included."""
    recipe, changes = RUNS[name]
    workdir = os.path.join(
        os.path.abspath(_FOLDER.value), f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
    )
    done = os.path.join(workdir, "done.json")
    if not os.path.exists(done):
        options = {"seed": seed, "data.source": os.path.abspath(_SOURCE.value), **changes}
        threads = max(1, os.cpu_count() // _JOBS.value)
        start = time.monotonic()
        metrics = run(f"configs/omniglot.py:{recipe}", workdir, options, threads=threads)
        seconds = time.monotonic() - start
        with open(done, "w") as file:
            json.dump({**metrics, "seconds": seconds}, file)
    with open(done) as file:
        return json.load(file)


def mean_and_error(values: list[float]) -> str:
    """Mean and standard error in hundredths."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * statistics.mean(values):6.2f} ± {100 * error:.2f}"


def main(_):
    def shown(seed, name):
        result = train(name, seed)
        trained = result["trained"]
        print(f"seed {seed} {name}: {trained['recall_at_1']:.4f} {trained['map']:.4f}", flush=True)
        return result

    tasks = list(itertools.product(range(_SEEDS.value), RUNS))
    with ThreadPoolExecutor(_JOBS.value) as pool:
        results = dict(zip(tasks, pool.map(lambda task: shown(*task), tasks)))
    seeds = range(_SEEDS.value)
    first = next(iter(RUNS))
    print(
        f"{'':<20} {'Recall@1':>15} {'mAP':>15} {'R@1 - ' + first:>18} {'mAP - ' + first:>18} {'seconds':>8}"
    )
    for name in RUNS:
        cells = []
        for minus in (None, first):
            for metric in ("recall_at_1", "map"):
                values = [
                    results[seed, name]["trained"][metric]
                    - (results[seed, minus]["trained"][metric] if minus else 0)
                    for seed in seeds
                ]
                cells.append(mean_and_error(values))
        seconds = statistics.median(results[seed, name]["seconds"] for seed in seeds)
        print(f"{name:<20} {cells[0]:>15} {cells[1]:>15} {cells[2]:>18} {cells[3]:>18} {seconds:>8.0f}")


if __name__ == "__main__":
    app.run(main)
