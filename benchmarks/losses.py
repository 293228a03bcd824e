"""Cost of each loss, forward and backward, as a ratio to the bare similarity product.

    python -m benchmarks.losses [--batch=112,384,1024,4096] [--loss=pnp,smooth_ap] [--repeats=11]

The bare product is what any loss on pairs stands on: L2-normalise, matmul(e, e^T), its backward (by
autodiff). Times are medians of alternating runs in one process. Memory is the peak above what a fresh
process held before the call, in matrices `[batch, batch]` of float32; at small batches the compiler's
own memory is most of it. dim is 512.

Layouts of the batch: "4" and "32" images per class, and "quarter": one class is a quarter of the
batch, the others have 4.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import multiprocessing
import statistics
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfrank import losses

_BATCH = flags.DEFINE_list("batch", ["112", "384", "1024", "4096"], "Batch sizes.")
_LOSS = flags.DEFINE_list("loss", list(losses.LOSSES), "Names of losses.")
_LAYOUT = flags.DEFINE_list("layout", ["4", "32", "quarter"], "Class layouts.")
_REPEATS = flags.DEFINE_integer("repeats", 11, "Timed runs of each, after one to warm up.")

DIM = 512


def labels_of(layout: str, batch: int) -> np.ndarray:
    """`[batch]` labels in random order: `layout` images per class, or one class of a quarter."""
    if layout == "quarter":
        labels = np.arange(batch) // 4
        labels[: batch // 4] = -1
    else:
        labels = np.arange(batch) // int(layout)
    return np.random.default_rng(0).permutation(labels)


def similarity_product(labels, embeddings):
    """Forward and backward of the similarity matrix alone."""
    del labels
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        unit = tf.math.l2_normalize(embeddings, axis=1)
        similarity = tf.matmul(unit, unit, transpose_b=True)
    # Its own value stands in for an upstream gradient, so that none has to be made.
    return tape.gradient(similarity, embeddings, output_gradients=similarity)


def gradient_of(loss):
    """Forward and backward of a loss."""

    def gradient(labels, embeddings):
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            value = loss(labels, embeddings)
        return tape.gradient(value, embeddings)

    return gradient


def median_seconds(functions: dict, arguments: tuple, repeats: int) -> dict:
    """Median wall time of each function, run in turns so that noise hits all alike."""
    times = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function(*arguments).numpy()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_matrices(name: str, batch: int, layout: str) -> float:
    """Peak memory of the first call in this process, above what the process held before (Linux).

    In matrices `[batch, batch]` of float32. TensorFlow keeps what it has once taken, so every
    measurement needs a process of its own, warmed up on a small batch.
    """
    function = tf.function(similarity_product if name == "product" else gradient_of(losses.get(name)))
    function(*arguments(64, layout)).numpy()
    inputs = arguments(batch, layout)

    def status(field):
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # Resets the peak.
    before = status("VmRSS")
    function(*inputs).numpy()
    return (status("VmHWM") - before) / (4 * batch**2)


def arguments(batch: int, layout: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Labels and embeddings."""
    return tf.constant(labels_of(layout, batch)), tf.random.stateless_normal([batch, DIM], [0, 1])


def main(_):
    print(f"{'batch':>6} {'layout':>8} {'loss':>14} {'ms':>9} {'x product':>9} {'matrices':>9}")
    fresh = multiprocessing.get_context("spawn")
    for batch in map(int, _BATCH.value):
        for layout in _LAYOUT.value:
            functions = {"product": tf.function(similarity_product)} | {
                name: tf.function(gradient_of(losses.get(name))) for name in _LOSS.value
            }
            seconds = median_seconds(functions, arguments(batch, layout), _REPEATS.value)
            for name in functions:
                with fresh.Pool(1) as pool:
                    matrices = pool.apply(peak_matrices, (name, batch, layout))
                ratio = seconds[name] / seconds["product"]
                print(
                    f"{batch:>6} {layout:>8} {name:>14} {seconds[name] * 1e3:>9.2f} {ratio:>9.2f}"
                    f" {matrices:>9.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    app.run(main)
