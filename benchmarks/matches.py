"""Matches: whether the promise of a similarity threshold holds for other classes and in larger indexes.

    python -m benchmarks.matches --data=FOLDER [--splits=20] [--sets=cub50,caltech101,cars98,grocery81]
                                 [--folder=runs/photos]

FOLDER has a zip of each set, a folder a class in each. The features of the pretrained MobileNetV2 are
computed once, as by `benchmarks.photos`. For each split, half of the classes, drawn at random, are trained
on, but for a fifth of them, which is held out: a linear head that starts as a PCA, by PNP-Dq in 300 steps.
The other half are the test classes. The threshold from which on 95 % of the results are right is learnt

- "held out": from the held-out classes among all images of the training half, as `train` does, for an index
  of the test classes; of the test classes with the training half as strangers; and of half of the test
  classes with these strangers, which is an index of about three times their size. The queries are the test
  images, each searched for among the others;
- "own labels": from the labels of an index that holds 70 % of the images of each test class, alone and with
  the strangers, as an index does. The queries are the other 30 %.

Prints for each the share of the splits in which a threshold is promised, the share of right nearest images
among those accepted (over all splits, and in the worst split with 20 or more accepted), the number of splits
where it is below 90 %, and the share of the right nearest images that are accepted, over all splits.
"""

import collections
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks import photos
from tfrank import PNPLoss
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.thresholds import curve, threshold

_SPLITS = flags.DEFINE_integer("splits", 20, "Number of random splits of the classes.", lower_bound=1)
flags.set_default(photos._SETS, ["cub50", "caltech101", "cars98", "grocery81"])

STEPS, DIM, CLASSES, EXAMPLES = 300, 256, 16, 8
HELD_OUT, FEWEST = 0.2, 4
ENOUGH = 20


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def trained(features: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`[features, DIM]` weights of a head, trained on features of unit norm."""
    _, _, axes = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    weights = keras.Variable(axes[:DIM].T)
    optimizer, loss = (
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-4, STEPS)),
        PNPLoss("dq"),
    )
    optimizer.build([weights])

    @tf.function(autograph=False)
    def step(rows, classes):
        with tf.GradientTape() as tape:
            value = loss(classes, tf.matmul(rows, weights.value))
        optimizer.apply([tape.gradient(value, weights.value)])

    names = np.unique(labels)
    members = {name: np.flatnonzero(labels == name) for name in names}
    for _ in range(STEPS):
        chosen = rng.choice(names, min(CLASSES, len(names)), replace=False)
        batch = np.concatenate([rng.choice(members[name], EXAMPLES) for name in chosen])
        step(features[batch], labels[batch])
    return weights.numpy()


def split_classes(labels: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The rows of the classes to train on, to hold out and to test on."""
    classes = rng.permutation(np.unique(labels))
    train, test = np.split(classes, [len(classes) // 2])
    held_out, fit = np.split(train, [max(FEWEST, round(HELD_OUT * len(train)))])
    parts = {"fit": fit, "held out": held_out, "test": test}
    parts["half"] = test[: len(test) // 2]
    return {name: np.flatnonzero(np.isin(labels, some)) for name, some in parts.items()}


def accepted(rows, labels, queries, gallery, similarity) -> tuple[int, int, int]:
    """Numbers of nearest images that are accepted, that are accepted and right, and that are right."""
    own = np.where(np.isin(queries, gallery), np.searchsorted(gallery, queries), -1)
    found = exact(rows[queries], rows[gallery], 1, own)
    right = labels[gallery[found.index[:, 0]]] == labels[queries]
    good = found.similarity[:, 0] >= similarity
    return int(good.sum()), int((good & right).sum()), int(right.sum())


def of_split(rows: np.ndarray, labels: np.ndarray, parts: dict, rng: np.random.Generator) -> dict:
    """The counts of `accepted` for each way and index of one split."""
    strangers = np.union1d(parts["fit"], parts["held out"])
    measured = curve(rows[strangers], labels[strangers], queries=np.isin(strangers, parts["held out"]))
    test, half = parts["test"], parts["half"]
    result = {}
    for name, queries, gallery in (
        ("test classes", test, test),
        ("+ strangers", test, np.union1d(test, strangers)),
        ("half + strangers", half, np.union1d(half, strangers)),
    ):
        high = threshold(measured, images=len(gallery)).high
        result["held out", name] = high, *accepted(rows, labels, queries, gallery, high)
    order = rng.permutation(test)
    new, held = order[: 3 * len(order) // 10], np.sort(order[3 * len(order) // 10 :])
    for name, gallery in (("test classes", held), ("+ strangers", np.union1d(held, strangers))):
        known = np.isin(gallery, held)
        high = threshold(curve(rows[gallery], labels[gallery], queries=known)).high
        result["own labels", name] = high, *accepted(rows, labels, new, gallery, high)
    return result


def main(_):
    titles = f"{'promised':>9}{'right':>8}{'worst':>8}{'below 90':>10}{'accepted':>10}"
    print(f"{'':12}{'learnt from':12}{'index':18}{titles}")
    for name in photos._SETS.value:
        with np.load(photos.stored_features(name)) as stored:
            features = unit(stored["embeddings"])
            labels = np.unique(stored["labels"], return_inverse=True)[1].astype(np.int64)
        found = collections.defaultdict(list)
        for seed in range(_SPLITS.value):
            rng = np.random.default_rng(seed)
            parts = split_classes(labels, rng)
            weights = trained(features[parts["fit"]], labels[parts["fit"]], rng)
            for key, counts in of_split(unit(features @ weights), labels, parts, rng).items():
                found[key].append(counts)
        for (way, index), counts in found.items():
            high, took, good, right = np.array(counts).T
            share = good / np.maximum(took, 1)
            many = np.isfinite(high) & (took >= ENOUGH)
            cells = f"{np.mean(np.isfinite(high)):>9.0%}{good.sum() / max(took.sum(), 1):>8.1%}"
            cells += f"{share[many].min(initial=1):>8.1%}{np.sum((took > 0) & (share < 0.9)):>10}"
            print(f"{name:12}{way:12}{index:18}{cells}{good.sum() / right.sum():>10.1%}", flush=True)


if __name__ == "__main__":
    app.run(main)
