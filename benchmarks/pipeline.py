"""Throughput of the input pipeline, from records to batches of images.

    python -m benchmarks.pipeline [--peer] [--batches=10] [--rounds=5] [--images=1024]

JPEGs of 500x500 pixels and some 90 kB, made for the purpose, through PNP's augmentation (warp to 256, random
crop of 224, flip) into class-balanced batches of 128. Beside it, in the same process and in turns:

bare: a tf.data loop over the same bytes in memory: decode, resize, crop, flip, batch; no records, no sampler.
peer (extra `bench`): pytorch-metric-learning's MPerClassSampler, a PyTorch DataLoader of 2 workers, Pillow.

Images a second, medians of `rounds` stretches of `batches` batches after one to warm up.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import PIL.Image
import tensorflow as tf
from absl import app, flags

from tfrank.data.images import ImageLoader
from tfrank.data.pipeline import train_batches
from tfrank.data.records import ImageRecord, RecordReader, write_shard
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.data.transforms import Transform

_PEER = flags.DEFINE_bool("peer", False, "Measure PyTorch's DataLoader too.")
_BATCHES = flags.DEFINE_integer("batches", 10, "Batches of a stretch.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Timed stretches of each.", lower_bound=1)
_IMAGES = flags.DEFINE_integer("images", 1024, "Different images, a multiple of 4.", lower_bound=128)

SIDE, RESIZE, SIZE, BYTES = 500, 256, 224, 90_000
CLASSES_PER_BATCH, EXAMPLES_PER_CLASS = 32, 4
BATCH = CLASSES_PER_BATCH * EXAMPLES_PER_CLASS


def jpeg(number: int) -> bytes:
    """Clouds of all sizes and some grain, as a JPEG of the quality that takes about `BYTES`."""
    rng = np.random.default_rng(number)
    image = np.zeros([SIDE, SIDE, 3])
    for cells in (4, 16, 64, SIDE):
        noise = rng.integers(0, 256, [cells, cells, 3], np.uint8)
        image += np.asarray(PIL.Image.fromarray(noise).resize([SIDE, SIDE], PIL.Image.Resampling.BICUBIC))
    picture = PIL.Image.fromarray((image / 4).astype(np.uint8))
    sizes = {}
    for quality in range(40, 100, 5):
        file = io.BytesIO()
        picture.save(file, "jpeg", quality=quality)
        sizes[abs(len(file.getvalue()) - BYTES)] = file.getvalue()
    return sizes[min(sizes)]


def ours(files: list[bytes], labels: np.ndarray, folder: str) -> Iterator:
    """tfrank's batches, read from records on disk."""
    records = (
        ImageRecord(encoded=file, format="jpeg", label=int(label), text="", filename="", id=str(number))
        for number, (file, label) in enumerate(zip(files, labels))
    )
    reader = RecordReader(write_shard(records, os.path.join(folder, "a.tfrecord")))
    sampler = ClassBalancedSampler(
        labels, classes_per_batch=CLASSES_PER_BATCH, examples_per_class=EXAMPLES_PER_CLASS
    )
    loader = ImageLoader(transform=Transform(size=SIZE, resize=RESIZE, flip=0.5))
    return iter(train_batches(reader, sampler, loader, stop=10**6))


def bare(files: list[bytes]) -> Iterator:
    """The least that tf.data has to do for such images."""

    def load(encoded):
        image = tf.image.resize(tf.io.decode_jpeg(encoded, 3), [RESIZE, RESIZE], antialias=True)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, [SIZE, SIZE, 3]))
        return tf.cast(tf.round(image), tf.uint8)

    images = tf.data.Dataset.from_tensor_slices(files).repeat().map(load, tf.data.AUTOTUNE)
    return iter(images.batch(BATCH).prefetch(2))


def peer(files: list[bytes], labels: np.ndarray) -> Iterator:
    """What users of pytorch-metric-learning write."""
    import torch
    from pytorch_metric_learning.samplers import MPerClassSampler

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, number):
            image = PIL.Image.open(io.BytesIO(files[number])).convert("RGB")
            image = image.resize([RESIZE, RESIZE], PIL.Image.Resampling.BILINEAR)
            left, top = torch.randint(RESIZE - SIZE + 1, [2]).tolist()
            image = image.crop([left, top, left + SIZE, top + SIZE])
            if torch.rand([]) < 0.5:
                image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(image)), labels[number]

    sampler = MPerClassSampler(labels, EXAMPLES_PER_CLASS, BATCH, length_before_new_iter=BATCH * 10**4)
    return iter(torch.utils.data.DataLoader(Images(), BATCH, sampler=sampler, num_workers=2))


def images_per_second(batches: Iterator, count: int) -> float:
    """How fast `count` batches come."""
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * BATCH / (time.perf_counter() - started)


def main(_):
    files = [jpeg(number) for number in range(_IMAGES.value)]
    labels = np.arange(len(files)) // EXAMPLES_PER_CLASS
    print(
        f"{len(files):,} JPEGs of {SIDE}x{SIDE} pixels, {np.mean([*map(len, files)]) / 1e3:.0f} kB on average"
    )
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[], Iterator]] = {
            "tfrank": lambda: ours(files, labels, folder),
            "bare": lambda: bare(files),
        }
        if _PEER.value:
            sides["peer"] = lambda: peer(files, labels)
        rates = {name: [] for name in sides}
        for turn in range(_ROUNDS.value + 1):
            for name, make in sides.items():
                # Made anew each time, so that no other prepares batches meanwhile.
                batches = make()
                images_per_second(batches, 3)
                rate = images_per_second(batches, _BATCHES.value)
                if turn:
                    rates[name].append(rate)
                del batches
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name:>8} {rate:8,.0f} images/s   tfrank / {name} {medians['tfrank'] / rate:.2f}")


if __name__ == "__main__":
    app.run(main)
