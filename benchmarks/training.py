"""Cost of the training step in stages, and of the training loop.

    python -m benchmarks.training [--part=resnet,convnet,loop] [--steps=3] [--source=ARCHIVE]

resnet: ResNet-50 at 64x64, a batch of 256 in micro-batches of 16, beside plain steps on 16 and 256.
convnet: a convnet of 8 filters at 512x512, a batch of 512 in micro-batches of 8, beside a plain step on 8.
Each measurement has a process of its own: seconds are the median of `steps` steps after one to warm up;
memory is the peak of a step after that one, above what the process held before model, optimizer and images
were made, in a second process where tensors are mapped one by one (slower, but what is freed is given back,
so that malloc's gaps do not count). The loss is PNP-Dq, the optimizer Adam; ResNet-50's batch norm is frozen.

loop: a trainer's step beside a step of Keras' `fit`, on the same data with the same model, loss and
optimizer: digits, and Omniglot where --source is given. The two take turns, each time in a process of its own
(in one process the trainer is at times slower after `fit`); the ratio is the median over the turns.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import ctypes
import importlib
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from tfrank import PNPLoss
from tfrank.models.embedding import embedding_model
from tfrank.run import datasets, experiment
from tfrank.run.objective import build_loss
from tfrank.training.step import build_step

_PART = flags.DEFINE_list("part", ["resnet", "convnet", "loop"], "What to measure.")
_STEPS = flags.DEFINE_integer("steps", 3, "Timed steps of each measurement.", lower_bound=1)
_SOURCE = flags.DEFINE_string("source", "", "Path of the Omniglot archive, for part loop.")
_LOOP_STEPS = flags.DEFINE_integer("loop_steps", 300, "Timed steps of part loop.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Processes of each, in part loop.", lower_bound=1)

EMBEDDING = 512
MODELS = {
    "resnet": dict(image_size=64, backbone="resnet50", batch_norm="frozen", embedding_dim=EMBEDDING),
    "convnet": dict(image_size=512, filters=8, pooling="average", embedding_dim=EMBEDDING),
}
# Batch and micro-batch.
STEPS = {
    "resnet": [(16, 0), (256, 0), (256, 16)],
    "convnet": [(8, 0), (512, 8)],
}


def status(field: str) -> int:
    """Bytes of a field of this process's status (Linux)."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def measure(part: str, batch: int, micro_batch: int, steps: int) -> tuple[float, int]:
    """Median seconds of a step, and peak bytes, of a process that did nothing before."""
    before = status("VmRSS")
    size = MODELS[part]["image_size"]
    keras.utils.set_random_seed(0)
    model = embedding_model(**MODELS[part])
    optimizer = keras.optimizers.Adam(1e-5)
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    step = build_step(model, PNPLoss("dq"), optimizer, strategy=strategy, micro_batch_size=micro_batch)
    # Repeated by TensorFlow: of a NumPy array it would hold a second copy.
    images = tf.constant(np.random.default_rng(0).integers(0, 255, [8, size, size, 3], np.uint8))
    inputs = {"image": tf.repeat(images, batch // 8, axis=0), "label": tf.constant(np.arange(batch) // 4)}
    seconds = []
    for turn in range(steps + 1):
        started = time.perf_counter()
        float(step(inputs).loss)
        if turn:
            seconds.append(time.perf_counter() - started)
        else:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as refs:
                refs.write("5")  # Resets the peak.
    return statistics.median(seconds), status("VmHWM") - before


def in_fresh_process(function, *arguments):
    """The result of a function, in a process of its own."""
    # Of an executor: processes of a pool may have none of their own, with which records are prepared.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def measure_steps(part: str) -> None:
    """Prints the plain steps and the one in stages."""
    print(f"{part}: {'batch':>8} {'micro':>6} {'s/step':>8} {'images/s':>9} {'MB':>7} {'MB, images':>11}")
    size = MODELS[part]["image_size"]
    for batch, micro_batch in STEPS[part]:
        seconds, _ = in_fresh_process(measure, part, batch, micro_batch, _STEPS.value)
        # glibc reads it when a process starts.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
        _, memory = in_fresh_process(measure, part, batch, micro_batch, 1)
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
        images = batch * size**2 * 3
        print(
            f"{part}: {batch:>8} {micro_batch:>6} {seconds:>8.2f} {batch / seconds:>9.1f}"
            f" {memory / 1e6:>7.0f} {images / 1e6:>11.0f}",
            flush=True,
        )


def time_loop(name: str, source: str, loop: str, steps: int) -> float:
    """Seconds of a step, of `steps` that follow on as many to warm up; `loop` is "trainer" or "fit"."""
    config = importlib.import_module(f"tfrank.configs.{name}").get_config()
    config.data.source, config.train.l2 = source, 0.0
    with tempfile.TemporaryDirectory() as workdir:
        data = datasets.build_data(config.data, workdir, seed=config.seed)
        if loop == "trainer":
            strategy = experiment.build_strategy(config.train, config.data.batch_size)
            trainer = experiment.build_training(config, workdir, strategy, 2 * steps, data.train).trainer
            every = dict(checkpoint_every=config.train.checkpoint_every, log_every=config.train.log_every)

            def train(start):
                batches, explain = datasets.build_batches(
                    config.data, data.train, start + steps, seed=config.seed
                )
                trainer.fit(batches, steps=start + steps, explain=explain, **every)
        else:
            model, loss = experiment.build_model(config), build_loss(config.loss, data.train.label)
            model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-8), loss=loss)

            def train(start):
                batches, _ = datasets.build_batches(config.data, data.train, start + steps, seed=config.seed)
                pairs = batches(start).map(
                    lambda batch: (tf.cast(batch["image"], tf.float32), batch["label"])
                )
                model.fit(pairs, shuffle=False, verbose=0)

        train(0)
        started = time.perf_counter()
        train(steps)
        return (time.perf_counter() - started) / steps


def measure_loop(name: str, source: str, steps: int, rounds: int) -> None:
    """Prints a trainer's step as a ratio to a step of `fit`."""
    seconds = np.array(
        [
            [in_fresh_process(time_loop, name, source, loop, steps) for loop in ("trainer", "fit")]
            for _ in range(rounds)
        ]
    )
    ours, keras_own = 1e3 * np.median(seconds, axis=0)
    ratios = seconds[:, 0] / seconds[:, 1]
    print(
        f"{name}: a step takes the trainer {ours:.1f} ms, fit {keras_own:.1f} ms; {np.median(ratios):.3f}"
        f" times as long ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main(_):
    for part in _PART.value:
        if part == "loop":
            options = (_LOOP_STEPS.value, _ROUNDS.value)
            measure_loop("digits", "", *options)
            if _SOURCE.value:
                measure_loop("omniglot", _SOURCE.value, *options)
        else:
            measure_steps(part)


if __name__ == "__main__":
    app.run(main)
