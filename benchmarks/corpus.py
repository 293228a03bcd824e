"""What training on very many images costs before the first step: records, the sampler, and proxies.

    python -m benchmarks.corpus [--records=1e8] [--classes=1e6] [--folder=FOLDER]

Writes an index of records that do not exist (57 bytes each) to the folder. Then measures, in processes of
their own, opening the index, making the class-balanced sampler (20 images a class) and drawing a batch of 64;
and a step of CosFace with a proxy for each class, 128 dimensions and a batch of 256, with a tenth of the
proxies and with all. Prints seconds, and the largest memory of the process.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfrank
from tfrank.data.index import RecordIndex, load_index
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.losses.proxies import SampledProxyLoss

_RECORDS = flags.DEFINE_float("records", 1e8, "Number of records.", lower_bound=1)
_CLASSES = flags.DEFINE_float("classes", 1e6, "Number of classes of the proxies.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "", "Where the index goes; a temporary folder if empty.")
_PART = flags.DEFINE_string("part", "", "What this process measures; set by the benchmark itself.")
SHARD_RECORDS, RECORD_BYTES, IMAGES_PER_CLASS = 10_000, 1000, 20
DIM, BATCH, STEPS = 128, 256, 5


def write_index(folder: str, records: int) -> None:
    """Writes an index, and shards that are empty but for their size."""
    paths = [f"{folder}/train-{number:05d}.tfrecord" for number in range(-(-records // SHARD_RECORDS))]
    for path in paths:
        with open(path, "wb") as file:
            file.truncate(SHARD_RECORDS * RECORD_BYTES)
    number = np.arange(records)
    zeros, unknown = np.zeros(records, np.int8), np.full(records, -1)
    RecordIndex(
        shards=tuple(paths),
        size=np.full(len(paths), SHARD_RECORDS * RECORD_BYTES),
        shard=number // SHARD_RECORDS,
        offset=number % SHARD_RECORDS * RECORD_BYTES,
        length=np.full(records, RECORD_BYTES),
        label=number // IMAGES_PER_CLASS,
        category=unknown,
        role=zeros,
        group=unknown,
        has_box=zeros.astype(bool),
        id=np.full(records, b"an image id", "S11"),
        checksum=zeros.astype(np.uint32),
    ).save(f"{folder}/train.index")


def show(what: str, seconds: float) -> None:
    """Prints a row, with the largest memory so far."""
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:40}{seconds:10.2f} s{megabytes:10,.0f} MiB", flush=True)


def measure_index(folder: str) -> None:
    """Opens the index and draws a batch."""
    begun = time.monotonic()
    index = load_index(f"{folder}/train.index")
    show(f"open an index of {len(index):,}", time.monotonic() - begun)
    begun = time.monotonic()
    sampler = ClassBalancedSampler(index.label, classes_per_batch=16, examples_per_class=4)
    show("sampler", time.monotonic() - begun)
    begun = time.monotonic()
    sampler.batch(12_345)
    show("first batch", time.monotonic() - begun)


def measure_proxies(share: float, classes: int) -> None:
    """Takes steps of a linear model with proxies; shows the median."""
    loss = tfrank.CosFaceLoss(np.arange(classes))
    if share < 1:
        loss = SampledProxyLoss(loss, share=share)
    model = keras.Sequential([keras.Input([DIM]), keras.layers.Dense(DIM), loss.proxies()])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss.iteration = optimizer.iterations
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(BATCH, DIM)).astype(np.float32), rng.integers(classes, size=BATCH)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, model(features))
        gradients = tape.gradient(value, [variable.value for variable in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    step()
    seconds = []
    for _ in range(STEPS):
        begun = time.monotonic()
        step().numpy()
        seconds.append(time.monotonic() - begun)
    show(f"a step with {share:.0%} of {classes:,} proxies", float(np.median(seconds)))


def main(_):
    records, classes = int(_RECORDS.value), int(_CLASSES.value)
    if _PART.value == "write":
        write_index(_FOLDER.value, records)
    elif _PART.value == "index":
        measure_index(_FOLDER.value)
    elif _PART.value:
        measure_proxies(float(_PART.value), classes)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = _FOLDER.value or temporary
            written = os.path.exists(f"{folder}/train.index")
            # This process stays small, since Linux counts its memory as that of the processes it starts.
            for part in [*([] if written else ["write"]), "index", "0.1", "1"]:
                flags_of = [f"--folder={folder}", f"--part={part}"]
                flags_of += [f"--classes={classes}", f"--records={records}"]
                subprocess.run([sys.executable, "-m", "benchmarks.corpus", *flags_of], check=True)


if __name__ == "__main__":
    app.run(main)
