"""Records what TensorFlow Similarity, TF Recommenders and OML give, which cannot be installed beside tfrank.

It evaluates the first column of the tables of docs/migrate, in an environment of that library, and writes
the results to tests/docs/migrate. `tests/docs/test_migrate.py` compares tfrank, the second column, with them,
and what the third says about the difference. Run in the folder of the repository, with Python 3.11:

    pip install tensorflow-cpu==2.15.1 tensorflow-similarity==0.17.1 tensorflow-recommenders==0.7.7
    pip install scann==1.3.0
    python -m benchmarks.migration_peers tensorflow_similarity
    python -m benchmarks.migration_peers tf_recommenders

and, in another environment:

    pip install torch torchvision omegaconf gdown validators albumentations pandas matplotlib
    pip install --no-deps open-metric-learning==4.0.0
    python -m benchmarks.migration_peers open_metric_learning
"""

import functools
import importlib
import importlib.metadata
import inspect
import json
import pathlib
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from docs._ext.tables import rows_of_page

ROOT = pathlib.Path(__file__).parents[1]
PAGES, RECORDS = ROOT / "docs" / "migrate", ROOT / "tests" / "docs" / "migrate"
SECTIONS = ("Losses", "Metrics", "Search", "Samplers", "Layers")
DIM, DRAWN = 4, 8
# Labels of the batches: two and three images a class, several, a row alone in its class, and ids of pairs.
BATCHES = {
    "twos": np.arange(8) // 2,
    "threes": np.arange(12) // 3,
    "several": np.repeat(np.arange(3), [4, 3, 2]),
    "alone": np.repeat(np.arange(4), [3, 3, 3, 1]),
    "ids": np.arange(8),
}
WEIGHTS = np.linspace(0.5, 2, 12).astype(np.float32)


def noise(count: int, seed: int) -> np.ndarray:
    """`[count, 4]` float32, of any norm."""
    return np.random.default_rng(seed).normal(size=[count, DIM]).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    """The rows, L2-normalised."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def images() -> dict[str, Any]:
    """Overlapping classes of 3 to 6 images, of two categories: what the tables call them by."""
    labels = np.repeat(np.arange(8), [3, 4, 5, 6, 6, 5, 4, 3])
    embeddings = unit(noise(8, 3)[labels] + 0.8 * noise(len(labels), 4))
    return {
        "embeddings": embeddings,
        "labels": labels,
        "queries": embeddings[1::2],
        "query_labels": labels[1::2],
        "gallery": embeddings[::2],
        "gallery_labels": labels[::2],
        "r": dict(enumerate(np.bincount(labels[::2]).tolist())),
        "candidates": unit(embeddings + 0.6 * noise(len(labels), 5)),
        "categories": labels % 2,
        "label2category": {label: label % 2 for label in range(8)},
    }


class Pair(NamedTuple):
    """A row of a table of docs/migrate: code of the library and of tfrank, and what is said of the values."""

    codes: tuple[str, str]
    value: str


def pairs(page: str, section: str) -> list[Pair]:
    """The rows under a heading of a page that have code of both; a name without parentheses is no code."""
    path, found = PAGES / f"{page}.md", []
    if f"\n## {section}\n" not in path.read_text():
        return []
    for theirs, ours, value in (row.values() for row in rows_of_page(path, f"## {section}")):
        codes = [re.findall(r"`([^`]+)`", cell) for cell in (theirs, ours)]
        if "(" in theirs and not ours.startswith("none"):
            found.append(Pair((codes[0][0], codes[1][0]), value))
    return found


class Peer(NamedTuple):
    """A library.

    Attributes:
        packages: whose versions are recorded.
        modules: where its losses, metrics, searches and samplers are; the page has to name each of them.
        names: what its code on the page is evaluated with, besides the names in `modules`.
        measures: by heading of the page, the function from `make`, which evaluates code, to what is recorded.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    names: Mapping[str, Any]
    measures: Mapping[str, Callable[[Callable[[], Any]], Any]]


def by_batch(batches, make, value_and_gradient) -> dict[str, Any]:
    """Value and gradient of a new loss on each of some batches, after a step on other rows for its memory.

    Args:
        batches: names of `BATCHES`.
        make: returns the loss.
        value_and_gradient: a function of the loss, labels, rows and the other rows.
    """
    found = {}
    for name in batches:
        loss, labels = make(), BATCHES[name]
        rows, past = noise(len(labels), 1), noise(len(labels), 2)
        value_and_gradient(loss, labels, past, rows)
        value, gradient = value_and_gradient(loss, labels, rows, past)
        found[name] = {"value": float(value), "gradient": gradient.numpy().tolist()}
    return found


def in_tensorflow(batches, make, call):
    """`by_batch` of a function of the loss, labels, unit rows and other unit rows."""
    import tensorflow as tf

    def value_and_gradient(loss, labels, rows, past):
        rows = tf.constant(rows)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            value = tf.reduce_mean(call(loss, labels, tf.math.l2_normalize(rows, 1), tf.constant(unit(past))))
        return value, tape.gradient(value, rows)

    return by_batch(batches, make, value_and_gradient)


def tensorflow_similarity() -> Peer:
    """TensorFlow Similarity: an index of the gallery, or of all images for metrics that drop the nearest."""
    import tensorflow as tf
    import tensorflow_similarity as tfsim

    def index(rows, labels):
        inputs = tf.keras.Input([DIM])
        model = tfsim.models.SimilarityModel(inputs, tf.keras.layers.Lambda(lambda x: x)(inputs))
        model.compile("sgd", tfsim.losses.TripletLoss())
        model.index(tf.constant(rows), labels, np.arange(len(rows)), verbose=0)
        return model

    data = images()
    model = index(data["gallery"], data["gallery_labels"])
    of_all = index(data["embeddings"], data["labels"])

    def of_loss(make):
        if isinstance(make(), tfsim.losses.SimCLRLoss | tfsim.losses.MultiNegativesRankLoss):
            return in_tensorflow(["ids"], make, lambda loss, labels, rows, past: loss(rows, past))
        return in_tensorflow(
            ["twos", "threes", "alone"],
            make,
            lambda loss, labels, rows, past: loss(tf.constant(labels), rows),
        )

    def of_metric(make):
        metric = make()
        if isinstance(metric, tfsim.callbacks.EvalCallback):
            logs = {}
            metric.set_model(index(data["gallery"], data["gallery_labels"]))
            metric.on_epoch_end(0, logs)
            return float(logs["binary_accuracy"])
        searched, names = (
            (of_all, ("embeddings", "labels"))
            if metric.drop_closest_lookup
            else (model, ("queries", "query_labels"))
        )
        return float(*searched.evaluate_retrieval(*map(data.get, names), [metric], verbose=0).values())

    def of_search(make):
        found = make()
        if isinstance(found, list):
            return {
                "index": [[int(one.data) for one in row] for row in found],
                "number": [[one.distance for one in row] for row in found],
            }
        return found.cutpoints["match"]["distance"]

    random.seed(0)
    return Peer(
        ("tensorflow-similarity", "tensorflow-cpu", "keras", "numpy", "nmslib"),
        tuple(
            f"tensorflow_similarity.{name}"
            for name in ("losses", "retrieval_metrics", "samplers", "callbacks", "layers")
        ),
        {**data, "model": model},
        {
            "Losses": of_loss,
            "Metrics": of_metric,
            "Search": of_search,
            "Samplers": lambda make: [
                labels.numpy().tolist() for _, labels in map(make().__getitem__, range(DRAWN))
            ],
            "Layers": lambda make: make()(data["embeddings"].reshape([1, 9, 4, DIM])).numpy().tolist(),
        },
    )


def tf_recommenders() -> Peer:
    """TF Recommenders: queries and candidates, whose ids are the labels of the batch."""
    import tensorflow as tf

    data = images()
    candidates = tf.data.Dataset.from_tensor_slices(data["candidates"]).batch(len(data["labels"]))

    def of_loss(make):
        def call(task, labels, rows, past):
            weights = tf.constant(WEIGHTS[: len(labels)])
            return task(
                rows, past, sample_weight=weights, candidate_ids=tf.constant(labels), compute_metrics=False
            )

        return in_tensorflow(["ids", "threes"], make, call)

    def of_metric(make):
        def value(**by):
            metric = make()
            metric.update_state(data["embeddings"], data["candidates"], **by)
            return float(metric.result()[0])

        return {"ids": value(true_candidate_ids=tf.range(len(data["labels"]))), "scores": value()}

    def of_search(make):
        number, index = make()(tf.constant(data["queries"]))
        return {"index": index.numpy().tolist(), "number": number.numpy().tolist()}

    return Peer(
        ("tensorflow-recommenders", "tensorflow-cpu", "keras", "numpy", "scann"),
        tuple(f"tensorflow_recommenders.{name}" for name in ("tasks", "metrics", "layers.factorized_top_k")),
        {
            **data,
            "candidates": candidates,
            "dataset": tf.data.Dataset.from_tensor_slices(data["gallery"]).batch(len(data["gallery"])),
        },
        {"Losses": of_loss, "Metrics": of_metric, "Search": of_search},
    )


def open_metric_learning() -> Peer:
    """OML: each image is a query among all others. Proxies are the other rows of a batch."""
    import torch
    from oml.functional.knn import batched_knn, batched_knn_qg
    from oml.metrics import calc_fnmr_at_fmr_rr, calc_retrieval_metrics_rr
    from oml.retrieval import RetrievalResults

    data = images()
    tensors = {name: torch.tensor(value) for name, value in data.items() if isinstance(value, np.ndarray)}
    everything = torch.arange(len(data["labels"]))
    results = RetrievalResults(
        *batched_knn(
            tensors["embeddings"], everything, everything, top_n=len(everything), labels_gt=tensors["labels"]
        )
    )

    def of_loss(make):
        def value_and_gradient(loss, labels, rows, past):
            if hasattr(loss, "weight"):
                loss.weight.data = torch.tensor(past[: len(loss.weight)])
            rows = torch.tensor(rows, requires_grad=True)
            value = loss(torch.nn.functional.normalize(rows), torch.tensor(labels))
            value.backward()
            return value.item(), rows.grad

        return by_batch(["twos", "threes", "several"], make, value_and_gradient)

    def of_search(make):
        found = make()
        if isinstance(found, RetrievalResults):
            return [len(row) for row in found.distances]
        number, index, _ = found
        return {"index": torch.stack(list(index)).tolist(), "number": torch.stack(list(number)).tolist()}

    np.random.seed(0)
    return Peer(
        ("open-metric-learning", "torch", "torchvision", "numpy"),
        ("oml.losses", "oml.miners", "oml.samplers", "oml.retrieval"),
        {
            **{**data, **tensors, "labels": data["labels"].tolist()},
            "results": results,
            "batched_knn_qg": batched_knn_qg,
            "calc_retrieval_metrics_rr": calc_retrieval_metrics_rr,
            "calc_fnmr_at_fmr_rr": calc_fnmr_at_fmr_rr,
        },
        {
            "Losses": of_loss,
            "Metrics": lambda make: float(make()),
            "Search": of_search,
            "Samplers": lambda make: [data["labels"][batch].tolist() for batch in make()],
        },
    )


def main(page: str) -> None:
    """Records what the library of a page gives."""
    peer = globals()[page]()
    names = {}
    for module in map(importlib.import_module, peer.modules):
        names |= {
            name: value
            for name, value in inspect.getmembers(module, inspect.isclass)
            if value.__module__.startswith(module.__name__)
        }
    found = {
        section: {
            pair.codes[0]: measure(functools.partial(eval, pair.codes[0], names | dict(peer.names)))
            for pair in pairs(page, section)
        }
        for section, measure in peer.measures.items()
    }
    versions = {package: importlib.metadata.version(package) for package in peer.packages}
    recorded = {"versions": versions, "names": sorted(names), **found}
    # Eight digits: what float32 has. A row of numbers is a line.
    rounded = json.loads(json.dumps(recorded), parse_float=lambda number: float(f"{float(number):.8g}"))
    text = re.sub(r"\[[^][]*\]", lambda row: " ".join(row[0].split()), json.dumps(rounded, indent=1))
    (RECORDS / f"{page}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
