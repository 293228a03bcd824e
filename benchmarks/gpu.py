"""Time and memory of the losses and of a training step on a GPU.

    python -m benchmarks.gpu [--batch=512,4096] [--loss=pnp,smooth_ap] [--layout=4,32,quarter] [--repeats=51]
                             [--noxla] [--nocompare]
    python -m benchmarks.gpu --step [--model=convnet,mobilenet_v2] [--batch=128] [--size=224] [--repeats=20]

With --peer, PyTorch and pytorch-metric-learning are measured in place of tfrank. That needs no TensorFlow,
and is best run in an environment of its own. Without a GPU the CPU is measured, whose memory is not.

Losses: milliseconds of value and gradient in a `tf.function`, and in one compiled by XLA; float32 with TF32
off. `benchmarks.loss_settings` says what each loss and each layout is. "first s" is the first call, which
compiles, unless another layout has had the same shapes. "ms" is the median of calls that end when a number
that depends on all of the result is on the host; slow calls are repeated less, at least five times. "in a
row" is the mean of ten calls with one such wait. MB is the peak of GPU memory above what was held before.

Value and gradient are compared with those of a process that sees no GPU, on random embeddings and on ones
around class centres: the largest norm of the difference, relative to the norm.

Steps: PNP-Dq, Adam, embeddings of 512 dimensions, classes of 4 images, which are on the device; batch norm is
trained. MB is the peak of all memory. Each step is measured in a process of its own.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import importlib
import itertools
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from absl import app, flags

from benchmarks import memory

_STEP = flags.DEFINE_bool("step", False, "Whether training steps are measured, not losses.")
_PEER = flags.DEFINE_bool("peer", False, "Whether PyTorch is measured, not tfrank.")
_BATCH = flags.DEFINE_list("batch", [], "Batch sizes; if empty, 512 and 4096, of steps 128.")
_LOSS = flags.DEFINE_list("loss", [], "Losses; if empty, all.")
_LAYOUT = flags.DEFINE_list("layout", ["4", "32", "quarter"], "Class layouts.")
_XLA = flags.DEFINE_bool("xla", True, "Whether the losses are also compiled by XLA.")
_COMPARE = flags.DEFINE_bool("compare", True, "Whether the losses are compared with the CPU's.")
_MODEL = flags.DEFINE_list("model", [], "Models of steps; if empty, all.")
_SIZE = flags.DEFINE_integer("size", 224, "Width of the images of steps.")
_REPEATS = flags.DEFINE_integer("repeats", None, "Timed calls of each; by default 51, of steps 20.")

# Calls that take longer than this in total are repeated less.
MOST_SECONDS = 2.0


class Cost(NamedTuple):
    """What a call costs.

    Attributes:
        first: seconds of the first call.
        median: seconds.
        in_a_row: seconds of one of ten calls with one wait.
        held, peak: bytes, before the timed calls and during them.
    """

    first: float
    median: float
    in_a_row: float
    held: float
    peak: float


def seconds_of(call, repeats: int = 1) -> float:
    """Seconds of one of some calls in a row, the last of which ends with a number on the host."""
    started = time.perf_counter()
    for _ in range(repeats):
        last = call()
    float(last)
    return (time.perf_counter() - started) / repeats


def cost_of(backend, make, *arguments, repeats: int, **options) -> Cost | None:
    """The cost of the call that `make` returns; None if memory runs out."""
    try:
        call = make(*arguments, **options)
        first = seconds_of(call)
        for _ in range(2):
            seconds_of(call)
        held, _ = backend.memory(reset=True)
        times: list[float] = []
        while len(times) < repeats and (len(times) < 5 or sum(times) < MOST_SECONDS):
            times.append(seconds_of(call))
        in_a_row = seconds_of(call, 10)
        return Cost(first, statistics.median(times), in_a_row, held, backend.memory()[1])
    except backend.OUT_OF_MEMORY:
        return None


def backend_of(peer: bool):
    """The module that makes what is measured."""
    return importlib.import_module("benchmarks.gpu_peer" if peer else "benchmarks.gpu_ours")


def cells_of(cost: Cost | None, megabytes: float) -> list[str]:
    """First call, median, in a row and memory, for a table."""
    if cost is None:
        return ["", "no memory", "", ""]
    room = "" if np.isnan(megabytes) else f"{megabytes:.0f}"
    return [f"{cost.first:.1f}", f"{cost.median * 1e3:.2f}", f"{cost.in_a_row * 1e3:.2f}", room]


def print_row(cells, widths) -> None:
    """One line of a table."""
    print(*(f"{cell:>{width}}" for cell, width in zip(cells, widths)), flush=True)


def measure_losses(peer: bool, batches: list[int], repeats: int, reference) -> None:
    """Prints a table of the losses.

    Args:
        peer: whether PyTorch is measured.
        batches: their sizes.
        repeats: timed calls of each.
        reference: a process that sees no GPU; None: no comparison.
    """
    backend = backend_of(peer)
    backend.use_gpu()
    print(backend.description())
    modes = [False, True] if _XLA.value and not peer else [False]
    columns = ["batch", "layout", "loss", *["first s", "ms", "in a row", "MB"] * len(modes)]
    widths = [6, 8, 20, *[8, 9, 9, 7] * len(modes), 9, 9]
    if len(modes) == 2:
        print_row(["", "", "", "", "", "", "", "XLA:"], widths)
    print_row([*columns, *(["value", "gradient"] if reference else [])], widths)
    for batch, layout, name in itertools.product(batches, _LAYOUT.value, _LOSS.value or backend.NAMES):
        measured = [xla for xla in modes if backend.can(name, batch, layout, xla)]
        if not measured:
            continue
        cells = [batch, layout, name]
        for xla in measured:
            cost = cost_of(backend, backend.loss_call, name, batch, layout, xla, repeats=repeats)
            cells += cells_of(cost, (cost.peak - cost.held) / 1e6 if cost else np.nan)
        cells += ["", "", "", ""] * (len(modes) - len(measured))
        if reference:
            cells += [
                f"{error:.1e}" for error in differences(backend, reference, name, batch, layout, measured)
            ]
        print_row(cells, widths)


def cpu_results(*arguments):
    """Value and gradient of a loss in the process that sees no GPU."""
    return backend_of(peer=False).results(*arguments)


def hide_gpus() -> None:
    """Begins the process that sees no GPU."""
    backend_of(peer=False).use_cpu()


def differences(backend, reference, name: str, batch: int, layout: str, modes) -> tuple[float, float]:
    """The largest relative difference of the value, and of a gradient, from the CPU's."""
    found = []
    for clustered in (False, True):
        wanted = reference.submit(cpu_results, name, batch, layout, False, clustered).result()
        for xla in modes:
            got = backend.results(name, batch, layout, xla, clustered)
            found.append([difference(*pair) for pair in zip(got, wanted)])
    value, *gradients = np.max(found, axis=0)
    return value, max(gradients)


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Norm of the difference, relative to what is wanted unless that is 0."""
    got, wanted = np.float64(got), np.float64(wanted)
    return float(np.linalg.norm(got - wanted) / (np.linalg.norm(wanted) or 1.0))


def cost_of_step(peer: bool, model: str, variant: str, batch: int, size: int, repeats: int) -> Cost | None:
    """The cost of a training step, in a process that did nothing before."""
    backend = backend_of(peer)
    options = backend.STEPS[variant]
    return cost_of(backend, backend.step_call, model, batch, size, repeats=repeats, **options)


def measure_steps(peer: bool, batches: list[int], repeats: int) -> None:
    """Prints a table of training steps."""
    backend = backend_of(peer)
    print(backend.description())
    widths = [6, 14, 28, 8, 9, 9, 7]
    print_row(["batch", "model", "", "first s", "ms", "in a row", "MB"], widths)
    models = _MODEL.value or backend.MODELS
    for batch, model, variant in itertools.product(batches, models, backend.STEPS):
        cost = memory.in_fresh_process(cost_of_step, peer, model, variant, batch, _SIZE.value, repeats)
        print_row([batch, model, variant, *cells_of(cost, cost.peak / 1e6 if cost else np.nan)], widths)


def main(_):
    peer = _PEER.value
    batches = [int(batch) for batch in _BATCH.value or (["128"] if _STEP.value else ["512", "4096"])]
    repeats = _REPEATS.value or (20 if _STEP.value else 51)
    if _STEP.value:
        measure_steps(peer, batches, repeats)
    elif peer or not _COMPARE.value:
        measure_losses(peer, batches, repeats, reference=None)
    else:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, hide_gpus) as reference:
            measure_losses(peer, batches, repeats, reference)


if __name__ == "__main__":
    app.run(main)
