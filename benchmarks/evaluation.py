"""Cost of evaluation, exact and by ScaNN, as ratios to the bare similarity product; agreement with peers.

    python -m benchmarks.evaluation [--images=60502] [--rounds=3] [--peer]
                                    [--source=images_background_small1.zip] [--folder=runs/evaluation]
                                    [--parts=exact --parts=scann]

Each image in turn is the query and all others are the gallery; dim is 512. The unit of time is the product of
all embeddings with all, in blocks, by TensorFlow, which is what our kernels stand on; nothing is done with
it. Times are medians of rounds in which all take turns in one process, on all cores; beside them the seconds
of all cores together, which other work on the machine does not lengthen as much. Memory is the peak above
what a fresh process held once it had imported everything and had done the same to 2,000 images, so it
includes the embeddings (Linux).

exact, large: all metrics (Recall@K, precision@K, mAP, MAP@R, R-precision, MRR, nDCG), each of every query.
    First about five images a class, as Stanford Online Products has; then 40,000 images, 300 a class.
    "generic" is `positive_ranks`, which serves queries apart from the gallery. Vectors are random: time does
    not depend on them.
peer (extra `bench`): FAISS's exact index asked for the 1,001 nearest, from which Recall@1000 follows, but no
    mAP. pytorch-metric-learning asks it for as many.
scann (`--source`): the 100 nearest, of embeddings of a model trained on Omniglot, see `trained_embeddings`.
    The first run trains it, in a minute, and leaves it in `--folder`.
agreement (`--source --peer`): our metrics on part of these embeddings are those of pytorch-metric-learning
    and OML to 1e-6; see `evaluation_peers` for what differs in definition.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import threadpoolctl
from absl import app, flags

from benchmarks import evaluation_peers, memory
from benchmarks.trained_embeddings import DIM, IMAGES_PER_CLASS, trained_embeddings
from tfrank.evaluation import retrieval_metrics as metrics
from tfrank.evaluation.leave_one_out import leave_one_out_ranks
from tfrank.evaluation.nearest import exhaustive, neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.evaluation.parallel import Gallery
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.retrieval_ranks import positive_ranks

_IMAGES = flags.DEFINE_integer("images", 60_502, "How many images.", lower_bound=1000)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Timed rounds.", lower_bound=1)
_PEER = flags.DEFINE_bool("peer", False, "Whether peers are measured too.")
_SOURCE = flags.DEFINE_string("source", None, "Path of the Omniglot archive or folder; none: no ScaNN.")
_PARTS = flags.DEFINE_multi_enum(
    "parts", ["exact", "large", "scann", "agreement"], ["exact", "large", "scann", "agreement"], "What to do."
)
_FOLDER = flags.DEFINE_string("folder", "runs/evaluation", "Where the trained model and its embeddings go.")

BLOCK, KS, K = 2048, (1, 10, 100), 100
FAISS_K = 1001
# The second case: so many images at most, and so many of a class.
LARGE_IMAGES, LARGE_CLASS = 40_000, 300
WARM_UP = 2000
# Images on which peers must agree, and how well.
AGREEING, TOLERANCE = 5000, 1e-6
PRODUCT = "product, TensorFlow"


def metrics_of(rows: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """What is measured: all metrics of every query."""
    return metrics.per_query(leave_one_out_ranks(rows, labels), KS)


def generic_metrics_of(rows: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The same for a gallery that need not be the queries."""
    relevance = relevance_by_label(labels, labels, np.arange(len(labels)))
    return metrics.per_query(positive_ranks(rows, rows, relevance), KS)


def product(rows: np.ndarray, labels: np.ndarray) -> None:
    """All similarities, in blocks, each shared by all cores."""
    gallery = Gallery(rows)
    for start in range(0, len(rows), BLOCK):
        gallery.similarities(rows[start : start + BLOCK])


def numpy_product(rows: np.ndarray, labels: np.ndarray) -> None:
    """As `product`, by the operator @."""
    for start in range(0, len(rows), BLOCK):
        rows[start : start + BLOCK] @ rows.T


def numpy_product_by_workers(rows: np.ndarray, labels: np.ndarray) -> None:
    """As `numpy_product`, with a block for each of two workers and a thread of BLAS for each block."""

    def block(start):
        rows[start : start + BLOCK // 2] @ rows.T

    with threadpoolctl.threadpool_limits(1), ThreadPoolExecutor(2) as pool:
        list(pool.map(block, range(0, len(rows), BLOCK // 2)))


def faiss_search(rows: np.ndarray, labels: np.ndarray) -> None:
    """FAISS's exact search."""
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    index.search(rows, min(FAISS_K, len(rows)))


Side = Callable[[np.ndarray, np.ndarray], object]
EXACT: dict[str, Side] = {
    PRODUCT: product,
    "product, NumPy": numpy_product,
    "product, NumPy, 2 workers": numpy_product_by_workers,
    "tfrank": metrics_of,
    "tfrank, generic": generic_metrics_of,
}


def random_case(images: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit-norm rows and labels in random order, all classes of like size."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal([images, DIM], np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rng.permutation(np.arange(images) % classes)


class Times(NamedTuple):
    """Seconds of each round, by name: `wall`, and `cores` for those of all cores together."""

    wall: dict[str, list[float]]
    cores: dict[str, list[float]]

    def cells(self, name: str, unit: str) -> str:
        """Medians of the seconds, and of what they are in those of a unit, round by round."""
        ratios = (np.median(np.divide(times[name], times[unit])) for times in self)
        medians = (np.median(times[name]) for times in self)
        return "".join(f" {value:>9.2f}" for pair in zip(medians, ratios) for value in pair)


def times_of(sides: dict[str, Callable[[], object]], rounds: int) -> Times:
    """What each takes, all taking turns."""
    times = Times({name: [] for name in sides}, {name: [] for name in sides})
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter(), time.process_time()
            side()
            times.wall[name].append(time.perf_counter() - start[0])
            times.cores[name].append(time.process_time() - start[1])
    return times


def header(unit: str) -> str:
    """The columns of `Times.cells`."""
    return "".join(f" {column:>9}" for column in ("seconds", f"x {unit}", "of cores", f"x {unit}"))


def peak_bytes(side: Side, images: int, classes: int) -> int:
    """Peak memory of a side and its embeddings, called in a fresh process."""
    side(*random_case(WARM_UP, WARM_UP // 5))
    before = memory.held()
    case = random_case(images, classes)
    return memory.peak_of(lambda: side(*case)) - before


def measure_exact(images: int, classes: int, sides: dict[str, Side]) -> None:
    """Prints time and memory of each side of a case."""
    print(f"\nExact: {images:,} x {DIM}, {images / classes:.0f} a class")
    for side in sides.values():
        side(*random_case(WARM_UP, WARM_UP // 5))
    case = random_case(images, classes)
    times = times_of({name: lambda side=side: side(*case) for name, side in sides.items()}, _ROUNDS.value)
    print(f"{'':<26}{header('product')} {'peak MB':>8}", flush=True)
    for name, side in sides.items():
        # Before the memory, which takes as long again.
        print(f"{name:<26}{times.cells(name, PRODUCT)}", end="", flush=True)
        peak = memory.in_fresh_process(peak_bytes, side, images, classes)
        print(f" {peak / 1e6:>8.0f}", flush=True)


def recalls(found: neighbors.Neighbors, labels: np.ndarray) -> list[float]:
    """Recall@K in percent, for each of KS, from lists of neighbours."""
    own = np.arange(len(labels))
    found = metrics.per_query_of_neighbors(*found, labels, labels, own, KS)
    return [100 * float(np.nanmean(found[f"recall_at_{k}"])) for k in KS]


def measure_scann(rows: np.ndarray, labels: np.ndarray) -> None:
    """Prints Recall@K and time of searching by ScaNN, and of exact search and the exact metrics."""
    print(f"\nThe {K} nearest: {len(rows):,} x {DIM}, of a trained model, {len(np.unique(labels)):,} classes")
    own, found = np.arange(len(rows)), {}
    start = time.perf_counter()
    index = ScannIndex.build(rows, k=K)
    build = time.perf_counter() - start

    def search(name, function, *arguments):
        # One more, by which ties are seen.
        found[name] = function(*arguments, K + 1, own)

    sides = {
        "exact": lambda: search("exact", exhaustive.exact, rows, rows),
        "ScaNN": lambda: search("ScaNN", index.search, rows),
        "metrics": lambda: metrics_of(rows, labels),
    }
    times = times_of(sides, _ROUNDS.value)
    print(f"{'':<10}{header('ScaNN')} " + " ".join(f"{f'Recall@{k}':>10}" for k in KS))
    for name in sides:
        cells = (
            " ".join(f"{recall:>10.3f}" for recall in recalls(found[name], labels)) if name in found else ""
        )
        print(f"{name:<10}{times.cells(name, 'ScaNN')} {cells}")
    print(f"ScaNN's index took {build:.1f} s to build and tune: {index.settings}")


def check_agreement(rows: np.ndarray, labels: np.ndarray) -> None:
    """Prints metrics beside those of peers; AssertionError where they differ."""
    for name, pairs_of in (("PML", evaluation_peers.pairs_of_pml), ("OML", evaluation_peers.pairs_of_oml)):
        print(f"\n{name + f', {len(rows):,} images':<32} {'tfrank':>10} {'theirs':>10} {'difference':>10}")
        for metric, (ours, theirs) in pairs_of(rows, labels).items():
            print(f"{metric:<32} {ours:>10.7f} {theirs:>10.7f} {abs(ours - theirs):>10.1e}", flush=True)
            assert abs(ours - theirs) <= TOLERANCE, metric


def main(_):
    images, large, parts = _IMAGES.value, min(_IMAGES.value, LARGE_IMAGES), _PARTS.value
    sides = EXACT | ({f"FAISS, {FAISS_K:,} nearest": faiss_search} if _PEER.value else {})
    if "exact" in parts:
        measure_exact(images, round(images / IMAGES_PER_CLASS), sides)
    if "large" in parts:
        measure_exact(large, -(-large // LARGE_CLASS), sides)
    if not _SOURCE.value:
        return print("\nScaNN and agreement need a trained model: --source, the path of an Omniglot archive.")
    rows, labels = trained_embeddings(images, _SOURCE.value, _FOLDER.value)
    if "scann" in parts:
        measure_scann(rows, labels)
    if "agreement" in parts and _PEER.value:
        # Whole classes, so that few queries are alone.
        some = np.sort(np.argsort(labels, kind="stable")[:AGREEING])
        check_agreement(rows[some], labels[some])


if __name__ == "__main__":
    app.run(main)
