"""What shorter embeddings keep: of one model trained to be cut, of PCA, and of a model for each length.

    python -m benchmarks.matryoshka --config=configs/omniglot.py --source=images_background_small1.zip
                                    [--seeds=5] [--folder=runs/matryoshka] [--steps=200]

For each seed, `train_main.py` trains a model of 256 dimensions, one that can be cut to 128, 64 and 32
(`train.matryoshka`), and one of each of these lengths. Runs that are done are not done again. It prints
Recall@1 and mAP in percent, means over seeds, and paired differences with Student's 95 % interval.
"""

import os

import numpy as np
from absl import app, flags

from benchmarks.runs import run
from experiments.intervals import over_seeds

_CONFIG = flags.DEFINE_string("config", "configs/omniglot.py", "The config of all runs.")
_SOURCE = flags.DEFINE_string("source", None, "Data of the config.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds, 0 and up.", lower_bound=2)
_FOLDER = flags.DEFINE_string("folder", "runs/matryoshka", "Where the runs go.")
_STEPS = flags.DEFINE_integer("steps", 0, "Steps of each run; 0: those of the config.", lower_bound=0)

WHOLE, DIMS = 256, (128, 64, 32)
# The options of each model.
MODELS = {
    "matryoshka": {"model.embedding_dim": WHOLE, "train.matryoshka": f"{WHOLE},128,64,32"},
    f"{WHOLE}": {"model.embedding_dim": WHOLE, "evaluation.dims": "128,64,32"},
    **{f"{dim}": {"model.embedding_dim": dim} for dim in DIMS},
}


def train(model: str, seed: int) -> dict[str, dict[str, float]]:
    """The metrics of one run, of its embeddings and of shorter ones."""
    workdir = os.path.join(os.path.abspath(_FOLDER.value), f"{model}-{seed}")
    options = {"seed": seed, "data.source": os.path.abspath(_SOURCE.value), **MODELS[model]}
    return run(_CONFIG.value, workdir, options | ({"train.steps": _STEPS.value} if _STEPS.value else {}))


def main(_):
    runs = {model: [train(model, seed) for seed in range(_SEEDS.value)] for model in MODELS}

    def values(model, metric, row="trained"):
        return np.array([run[row][metric] for run in runs[model]])

    for metric in ("recall_at_1", "map"):
        print(f"\n| {metric} | cut | first of 256 | PCA of 256 | trained so | cut - PCA | cut - trained so |")
        print("|---|---|---|---|---|---|---|")
        for dim in (WHOLE, *DIMS):
            first, pca = f"first {dim} dimensions", f"PCA to {dim} dimensions"
            rows = ("trained", "trained") if dim == WHOLE else (first, pca)
            cut, plain, reduced = (
                values(model, metric, row)
                for model, row in (("matryoshka", rows[0]), (f"{WHOLE}", rows[0]), (f"{WHOLE}", rows[1]))
            )
            trained = values(f"{dim}", metric)
            means = (f"{100 * np.mean(one):.2f}" for one in (cut, plain, reduced, trained))
            differences = map(over_seeds, (cut - reduced, cut - trained))
            print(f"| {dim} | {' | '.join(map(str, (*means, *differences)))} |")


if __name__ == "__main__":
    app.run(main)
