"""Memory, time and recall of what an index holds of its embeddings, beside ScaNN and FAISS.

    python -m benchmarks.storage --index_dir=birds --index_dir=cars [--rows=100000] [--rows=1000000]
                                 [--sides=binary,int8] [--queries=200] [--dim=256]

Indexes of `tfrank index` give real embeddings, which PCA reduces to `--dim`. From them more are drawn: to a
real one are added its differences to its 16 nearest, times normal numbers of standard deviation
`SPREAD / 4`. With 0.88, as many drawn ones as there are real ones have the nearest neighbours that real ones
have: the table begins with the quantiles of both. Queries are drawn apart from the gallery.

Each side runs in a process of its own, which loads what was saved. Memory is what it holds then and at most
during the searches, above what it held with everything imported (Linux). The time is the median of queries
one by one. Overlap@10 is with exact search; Recall@1 is by the label of the real embedding.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tempfile
import time

import numpy as np
from absl import app, flags

from benchmarks import memory
from tfrank.evaluation.nearest.coded_index import CodedIndex
from tfrank.evaluation.nearest.codes import CODES
from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.nearest.faiss_index import FaissIndex
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.search.index_folder import IndexFolder

_INDEXES = flags.DEFINE_multi_string(
    "index_dir", [], "Index folders, whose embeddings are those of labelled images."
)
_ROWS = flags.DEFINE_multi_integer("rows", [100_000, 1_000_000], "Numbers of vectors.")
SIDES = ("exact", "scann", "faiss", "faiss SQ8", *CODES)
_SIDES = flags.DEFINE_list("sides", list(SIDES), "What to measure.")
_QUERIES = flags.DEFINE_integer("queries", 200, "Number of queries.", lower_bound=1)
_DIM = flags.DEFINE_integer("dim", 256, "Dimensions.", lower_bound=1)
_RECALL = flags.DEFINE_float("target_recall", 0.99, "Recall that each is built to.")
NEIGHBORS, SPREAD, BLOCK, K = 16, 0.88, 2**15, 10


def real(folders: list[str], dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of indexes, reduced by PCA without centring, and their labels as numbers."""
    rows, labels = [], []
    for folder in folders:
        index = IndexFolder(folder)
        held = index.read(index.current(), ["id", "label"])
        rows.append(held.rows)
        labels += [f"{folder} {label}" for label in held.table.column("label").to_pylist()]
    rows = np.concatenate(rows)
    axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:dim]
    return unit(rows @ axes.T), np.unique(labels, return_inverse=True)[1]


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def drawn(rows: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are distributed as the real ones, and the number of the real one that each was drawn from."""
    rng = np.random.default_rng(seed)
    near = exact(rows, rows, NEIGHBORS, np.arange(len(rows))).index
    source, found = rng.integers(len(rows), size=count), np.empty([count, rows.shape[1]], np.float32)
    for start in range(0, count, BLOCK):
        some = source[start : start + BLOCK]
        weights = rng.normal(scale=SPREAD / NEIGHBORS**0.5, size=[len(some), NEIGHBORS])
        sums = rows[some] * (1 - weights.sum(axis=1, keepdims=True))
        for neighbor in range(NEIGHBORS):
            sums += weights[:, [neighbor]] * rows[near[some, neighbor]]
        found[start : start + BLOCK] = unit(sums)
    return found, source


def quantiles(name: str, rows: np.ndarray, labels: np.ndarray) -> None:
    """Prints the similarity of the first and tenth neighbour, and Recall@1, of up to 1,000 rows."""
    chosen = np.random.default_rng(0).permutation(len(rows))[:1000]
    found = exact(rows[chosen], rows, K, chosen)
    first, tenth = (np.quantile(found.similarity[:, at], [0.05, 0.5, 0.95]).round(3) for at in (0, K - 1))
    recall = 100 * np.mean(labels[found.index[:, 0]] == labels[chosen])
    print(f"{name}, {len(rows):,}: nearest {first}, tenth {tenth}, Recall@1 {recall:.1f} %", flush=True)


def build(side: str, folder: str, recall: float) -> None:
    """Builds the index of a side of the rows in a folder, and saves it where it can be loaded fast."""
    rows = np.load(f"{folder}/rows.npy")
    ids = np.arange(len(rows)).astype(str)
    if side in CODES:
        built = CodedIndex.build(rows, ids=ids, target_recall=recall, storage=side)
        print(f"{side}: {built.settings.depths}", flush=True)
        built.save(f"{folder}/{side}")
    elif side in ("scann", "faiss"):
        kind = {"scann": ScannIndex, "faiss": FaissIndex}[side]
        kind.build(rows, ids=ids, target_recall=recall).save(f"{folder}/{side}")
    elif side == "faiss SQ8":
        import faiss

        index = faiss.IndexScalarQuantizer(
            rows.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        index.train(rows[:BLOCK])
        index.add(rows)
        faiss.write_index(index, f"{folder}/{side}")


def opened(side: str, folder: str, named: np.ndarray):
    """Loads the index of a side; returns its search."""
    rows = np.load(f"{folder}/rows.npy", mmap_mode="r")
    if side == "faiss SQ8":
        import faiss

        index = faiss.read_index(f"{folder}/{side}")
        return lambda query: index.search(query, K)[1]
    if side in CODES:
        index = CodedIndex.load(f"{folder}/{side}", named, rows.shape[1], lambda new: rows[new])
    elif side == "exact":
        index = ExactIndex(np.array(rows), named)
    else:
        index = (
            ScannIndex.load(f"{folder}/scann")
            if side == "scann"
            else FaissIndex.load(f"{folder}/faiss", np.array(rows), named)
        )
    return lambda query: index.search(query, K).index


def measured(side: str, folder: str) -> tuple[np.ndarray, float, int, int]:
    """The neighbours of each query, milliseconds a query, and bytes held and at most."""
    queries = np.load(f"{folder}/queries.npy")
    small = CodedIndex.build(queries[:50], ids=np.arange(50).astype(str))
    small.search(queries[:1], K), exact(queries[:1], queries, K)
    if side.startswith("faiss"):
        import faiss  # noqa: F401  Part of what is imported, not of the index.
    # Whoever opens an index holds the ids, whatever it is searched by.
    named = np.arange(len(np.load(f"{folder}/rows.npy", mmap_mode="r"))).astype(str)
    before, found, seconds = memory.held(), [], []
    search = opened(side, folder, named)
    held = memory.held() - before

    def all_queries():
        for query in queries:
            begun = time.perf_counter()
            found.append(search(query[None])[0])
            seconds.append(time.perf_counter() - begun)

    peak = memory.peak_of(all_queries) - before
    return np.array(found), 1000 * float(np.median(seconds)), held, peak


def main(_):
    rows, labels = real(_INDEXES.value, _DIM.value)
    quantiles("real", rows, labels)
    more, source = drawn(rows, len(rows), 0)
    quantiles("drawn", more, labels[source])
    for count in _ROWS.value:
        with tempfile.TemporaryDirectory() as folder:
            more, source = drawn(rows, count + _QUERIES.value, 1)
            gallery, queries, classes = more[:count], more[count:], labels[source]
            np.save(f"{folder}/rows.npy", gallery), np.save(f"{folder}/queries.npy", queries)
            nearest = exact(queries, gallery, K).index
            del more, gallery
            print(
                f"\n{count:,} x {_DIM.value}: exact search has Recall@1"
                f" {100 * np.mean(classes[nearest[:, 0]] == classes[count:]):.1f} %"
            )
            columns = ("bytes a photo", "held MB", "peak MB", "ms a query", "overlap@10", "Recall@1")
            print(f"{'':<12}" + "".join(f"{column:>14}" for column in columns))
            for side in _SIDES.value:
                memory.in_fresh_process(build, side, folder, _RECALL.value)
                found, milliseconds, held, peak = memory.in_fresh_process(measured, side, folder)
                overlap = np.mean([len(np.intersect1d(*pair)) / K for pair in zip(found, nearest)])
                recall = 100 * np.mean(classes[found[:, 0]] == classes[count:])
                values = (f"{held / count:.0f}", f"{held / 1e6:.0f}", f"{peak / 1e6:.0f}")
                values += (f"{milliseconds:.1f}", f"{overlap:.3f}", f"{recall:.1f} %")
                print(f"{side:<12}" + "".join(f"{value:>14}" for value in values), flush=True)


if __name__ == "__main__":
    app.run(main)
