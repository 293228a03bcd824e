"""Recall@1 and mAP of each loss on Omniglot: means over seeds, and paired differences.

    python -m benchmarks.omniglot --source=images_background_small1.zip [--seeds=5] [--folder=runs/omniglot]

Each run is `train_main.py --config=configs/omniglot.py` in a process of its own; those that are done
are not done again. Differences are to the first loss, seed by seed, with the standard error of their mean.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags

_SOURCE = flags.DEFINE_string("source", None, "Path of the Omniglot archive or folder.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds, 0 and up.", lower_bound=2)
_FOLDER = flags.DEFINE_string("folder", "runs/omniglot", "Where the runs go.")

RUNS = {
    "PNP-Dq": (":pnp", "dq"),
    "PNP-Ds": (":pnp", "ds"),
    "PNP-O": (":pnp", "o"),
    "PNP-Ib": (":pnp", "ib"),
    "PNP-Iu": (":pnp", "iu"),
    "Smooth-AP": (":smooth_ap", None),
    "mAP_Q": (":map_q", None),
    "FastAP": (":fast_ap", None),
    "RLL": (":rll", None),
    "Blackbox AP": (":blackbox_ap", None),
    "Recall@k": (":recall_at_k", None),
    "SupAP": (":sup_ap", None),
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def train(name: str, seed: int) -> dict:
    """The metrics of one run and the seconds it took, start-up and evaluation included."""
    recipe, variant = RUNS[name]
    workdir = os.path.join(os.path.abspath(_FOLDER.value), f"{name.replace(' ', '_')}-{seed}")
    done = os.path.join(workdir, "done.json")
    if not os.path.exists(done):
        command = [
            *(sys.executable, "train_main.py", f"--config=configs/omniglot.py{recipe}"),
            *(f"--workdir={workdir}", f"--config.seed={seed}"),
            f"--config.data.source={os.path.abspath(_SOURCE.value)}",
        ]
        command += [f"--config.loss.variant={variant}"] if variant else []
        start = time.monotonic()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        with open(os.path.join(workdir, "metrics.json")) as file:
            metrics = json.load(file)
        with open(done, "w") as file:
            json.dump({**metrics, "seconds": seconds}, file)
    with open(done) as file:
        return json.load(file)


def mean_and_error(values: list[float]) -> str:
    """Mean and standard error in hundredths."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{100 * statistics.mean(values):6.2f} ± {100 * error:.2f}"


def main(_):
    runs = {}
    for seed in range(_SEEDS.value):
        for name in RUNS:
            result = train(name, seed)
            runs[name, seed] = result
            trained = result["trained"]
            print(f"seed {seed} {name}: {trained['recall_at_1']:.4f} {trained['map']:.4f}", flush=True)
    seeds = range(_SEEDS.value)
    first = next(iter(RUNS))
    print(
        f"{'':<11} {'Recall@1':>15} {'mAP':>15} {'R@1 - ' + first:>18} {'mAP - ' + first:>18} {'seconds':>8}"
    )
    for name in RUNS:
        cells = []
        for minus in (None, first):
            for metric in ("recall_at_1", "map"):
                values = [
                    runs[name, seed]["trained"][metric]
                    - (runs[minus, seed]["trained"][metric] if minus else 0)
                    for seed in seeds
                ]
                cells.append(mean_and_error(values))
        seconds = statistics.median(runs[name, seed]["seconds"] for seed in seeds)
        print(f"{name:<11} {cells[0]:>15} {cells[1]:>15} {cells[2]:>18} {cells[3]:>18} {seconds:>8.0f}")


if __name__ == "__main__":
    app.run(main)
