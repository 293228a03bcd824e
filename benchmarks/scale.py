"""Exact evaluation of random embeddings: by `evaluate`, and by Beam in one process and in two.

    python -m benchmarks.scale [--queries=4096] [--gallery=200000] [--dim=256]

Prints seconds, and similarities compared per second. The start of Beam and of its processes is included.
"""

import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import app, flags

from tfrank.evaluation import evaluate
from tfrank.search.index_folder import table_of

_QUERIES = flags.DEFINE_integer("queries", 4096, "Number of queries.", lower_bound=1)
_GALLERY = flags.DEFINE_integer("gallery", 200_000, "Number of gallery rows.", lower_bound=1)
_DIM = flags.DEFINE_integer("dim", 256, "Dimensions.", lower_bound=1)
FILE_ROWS, IMAGES_PER_CLASS = 10_000, 5
RUNS = {
    "Beam, this process": [],
    "Beam, two processes": ["--direct_running_mode=multi_processing", "--direct_num_workers=2"],
}


def embeddings(count: int, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random unit rows and labels."""
    rows = rng.normal(size=(count, _DIM.value)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), rng.integers(classes, size=count)


def write(folder: str, name: str, rows: np.ndarray, labels: np.ndarray) -> None:
    """Writes files of embeddings."""
    os.makedirs(folder)
    for number, start in enumerate(range(0, len(rows), FILE_ROWS), start=1):
        some = slice(start, start + FILE_ROWS)
        ids = [f"{name} {row}" for row in range(len(rows))[some]]
        columns = {"id": pa.array(ids), "label": pa.array([f"class {label}" for label in labels[some]])}
        pq.write_table(table_of(columns, rows[some]), f"{folder}/embeddings-{number:06d}.parquet")


def show(name: str, seconds: float) -> None:
    """Prints a row of the table."""
    millions = _QUERIES.value * _GALLERY.value / seconds / 1e6
    print(f"{name:22}{seconds:8.1f} s{millions:10,.0f} million similarities/s", flush=True)


def main(_):
    rng = np.random.default_rng(0)
    classes = max(1, _GALLERY.value // IMAGES_PER_CLASS)
    queries, gallery = (embeddings(count, classes, rng) for count in (_QUERIES.value, _GALLERY.value))
    begun = time.monotonic()
    wanted = evaluate(*queries, gallery_embeddings=gallery[0], gallery_labels=gallery[1], ks=[1, 10])
    show("evaluate", time.monotonic() - begun)
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/queries", "query", *queries)
        write(f"{folder}/gallery", "image", *gallery)
        flags_of = [f"--embeddings={folder}/gallery", f"--queries={folder}/queries", "--ks=1,10"]
        for number, (name, beam) in enumerate(RUNS.items()):
            command = [sys.executable, "-m", "tfrank.scale.entry_points", "evaluate", *flags_of, *beam]
            begun = time.monotonic()
            done = subprocess.run(
                [*command, f"--output_dir={folder}/{number}"], check=True, capture_output=True, text=True
            )
            show(name, time.monotonic() - begun)
            assert f"{wanted.metrics['map']:.4f}" in done.stdout


if __name__ == "__main__":
    app.run(main)
