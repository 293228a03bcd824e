"""Cost of each loss, forward and backward, as a ratio to the bare similarity product.

    python -m benchmarks.losses [--batch=112,384,1024,4096] [--loss=pnp,smooth_ap] [--layout=4,32,quarter]
                                [--repeats=11] [--peer]

The bare product is what any loss on pairs stands on: L2-normalise, matmul(e, e^T), its backward (by
autodiff). Times are medians of alternating runs in one process. Memory is the peak above what a fresh
process held before the call, in matrices `[batch, batch]` of float32; at small batches the compiler's
own memory is most of it. dim is 512.

The gradient of proxies is taken too. `benchmarks.loss_settings` says what each loss and each layout is.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import itertools
import statistics
import time

import tensorflow as tf
from absl import app, flags

from benchmarks import memory, peers
from benchmarks.loss_settings import DIM, MEMORY_ROWS, NUM_CLASSES, build, labels_of
from tfrank import losses
from tfrank.losses.proxies import PROXY_LOSSES

_BATCH = flags.DEFINE_list("batch", ["112", "384", "1024", "4096"], "Batch sizes.")
_LOSS = flags.DEFINE_list("loss", [*losses.LOSSES, *PROXY_LOSSES], "Losses; see `benchmarks.loss_settings`.")
_LAYOUT = flags.DEFINE_list("layout", ["4", "32", "quarter"], "Class layouts.")
_REPEATS = flags.DEFINE_integer("repeats", 11, "Timed runs of each, after one to warm up.")

_PEER = flags.DEFINE_bool("peer", False, "Whether pytorch-metric-learning is timed beside (extra `bench`).")

PEER_OF = "peer of "


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


def gradient_with_proxies(loss, layer):
    """Forward and backward of a loss and its layer of proxies."""

    def gradient(labels, embeddings):
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            value = loss(labels, layer(embeddings))
        to_embeddings, to_proxies = tape.gradient(value, (embeddings, layer.proxies.value))
        # Both, so that neither is left out.
        return to_embeddings + 0 * tf.reduce_sum(to_proxies)

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


def peak_bytes(name: str, batch: int, layout: str) -> int:
    """Peak memory of the first call in this process, above what the process held before (Linux).

    TensorFlow keeps what it has once taken, so every measurement needs a process of its own, warmed up
    on a small batch.
    """
    function = function_of(name)
    function(*arguments(64, layout)).numpy()
    inputs = arguments(batch, layout)
    before = memory.held()
    return memory.peak_of(lambda: function(*inputs).numpy()) - before


def function_of(name: str):
    """Forward and backward by name: "product", a loss, or "peer of" a loss."""
    if name == "product":
        return tf.function(similarity_product)
    if name.startswith(PEER_OF):
        name = name.removeprefix(PEER_OF)
        return peers.peer(name, dim=DIM, num_classes=NUM_CLASSES, memory=MEMORY_ROWS)
    loss, layer = build(name)
    return tf.function(gradient_with_proxies(loss, layer) if layer else gradient_of(loss))


def arguments(batch: int, layout: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Labels and embeddings."""
    return tf.constant(labels_of(layout, batch)), tf.random.stateless_normal([batch, DIM], [0, 1])


def main(_):
    tf.get_logger().setLevel("ERROR")  # Every loss is a function of its own, traced once.
    columns = ("batch", "layout", "loss", "ms", "x product", "MB", "matrices")
    widths = (6, 8, 20, 10, 10, 8, 9)
    print(*(f"{column:>{width}}" for column, width in zip(columns, widths)))
    for batch, layout in itertools.product(map(int, _BATCH.value), _LAYOUT.value):
        names = ["product", *_LOSS.value]
        if _PEER.value:
            names += [PEER_OF + name for name in _LOSS.value if peers.has_peer(name, batch)]
        functions = {name: function_of(name) for name in names}
        seconds = median_seconds(functions, arguments(batch, layout), _REPEATS.value)
        for name in names:
            peak = memory.in_fresh_process(peak_bytes, name, batch, layout)
            cells = (
                *(batch, layout, name, f"{seconds[name] * 1e3:.2f}"),
                *(f"{seconds[name] / seconds['product']:.2f}", f"{peak / 1e6:.0f}"),
                f"{peak / (4 * batch**2):.1f}",
            )
            print(*(f"{cell:>{width}}" for cell, width in zip(cells, widths)), flush=True)


if __name__ == "__main__":
    app.run(main)
