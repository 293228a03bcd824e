"""Embeddings of a trained model, as many as are asked for: handwritten characters in disguises.

The published test sets cannot be downloaded by everyone, and random vectors have no near neighbours, which
an approximate search lives on. So a model is trained on Omniglot (configs/omniglot.py, dim 512), and each
class is one drawing, upright, turned by quarters or mirrored; its images are that drawing slightly turned,
scaled and shifted.
"""

import io
import os

import numpy as np
import PIL.Image
import tensorflow as tf

from benchmarks.runs import run
from tfrank.common.normalize import l2_normalize
from tfrank.data.record_folder import open_split
from tfrank.data.records import RecordReader
from tfrank.evaluation.parallel import in_parallel

DIM, SIDE = 512, 28
# Stanford Online Products' test set has so many images a class.
IMAGES_PER_CLASS = 60_502 / 11_316
# As drawn, turned by quarters, and the same mirrored: enough for all of Stanford Online Products.
DISGUISES = (
    None,
    *(PIL.Image.Transpose.ROTATE_90, PIL.Image.Transpose.ROTATE_180, PIL.Image.Transpose.ROTATE_270),
    *(PIL.Image.Transpose.FLIP_LEFT_RIGHT, PIL.Image.Transpose.FLIP_TOP_BOTTOM),
    *(PIL.Image.Transpose.TRANSPOSE, PIL.Image.Transpose.TRANSVERSE),
)
# The most that an image is turned (degrees), scaled, and shifted (share of its side).
ANGLE, SCALE, SHIFT = 10, 0.1, 0.05
BATCH = 1024


def trained_embeddings(images: int, source: str, folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Unit-norm embeddings `[images, 512]` float32 and their labels, from a file or made now.

    Args:
        images: how many.
        source: path of the Omniglot archive or folder.
        folder: of the training run and of the file `embeddings_<images>.npz`, which `eval_main.py` takes too.
    """
    path = os.path.join(folder, f"embeddings_{images}.npz")
    if not os.path.exists(path):
        workdir = os.path.join(folder, "run")
        train(source, workdir)
        rows, labels = embed(images, workdir)
        np.savez(path, embeddings=rows, labels=labels)
    with np.load(path) as arrays:
        return arrays["embeddings"], arrays["labels"]


def train(source: str, workdir: str) -> None:
    """Trains the model, unless it is there."""
    options = {"data.source": os.path.abspath(source), "model.embedding_dim": DIM}
    run("configs/omniglot.py", os.path.abspath(workdir), options)


def embed(images: int, workdir: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings and labels of disguised drawings of the run's archive."""
    drawings = drawings_of(workdir)
    classes = min(max(2, round(images / IMAGES_PER_CLASS)), len(DISGUISES) * len(drawings))
    labels = np.random.default_rng(0).permutation(np.arange(images) % classes)
    model = tf.saved_model.load(os.path.join(workdir, "saved_model")).signatures["serving_default"]

    def embed_batch(start):
        numbers = range(start, min(start + BATCH, images))
        batch = np.stack([image(number, labels[number], drawings) for number in numbers])
        return l2_normalize(model(images=tf.constant(batch))["embedding"]).numpy()

    return np.concatenate(list(in_parallel(embed_batch, range(0, images, BATCH)))), labels


def drawings_of(workdir: str) -> list[PIL.Image.Image]:
    """All drawings of the run's records."""
    drawings = []
    for split in ("train", "test"):
        index = open_split(os.path.join(workdir, "records"), split)
        with RecordReader(index) as reader:
            for record in reader.read(range(len(index))):
                features = tf.train.Example.FromString(record).features.feature
                encoded = io.BytesIO(features["image/encoded"].bytes_list.value[0])
                drawings.append(PIL.Image.open(encoded).convert("L"))
    return drawings


def image(number: int, label: int, drawings: list[PIL.Image.Image]) -> np.ndarray:
    """`[28, 28, 3]` float32: a drawing in the disguise of its class, slightly moved as its number says."""
    rng = np.random.default_rng(number)
    angle = np.radians(rng.uniform(-ANGLE, ANGLE))
    cos, sin = np.array([np.cos(angle), np.sin(angle)]) * rng.uniform(1 - SCALE, 1 + SCALE)
    drawing = drawings[label % len(drawings)]
    if (disguise := DISGUISES[label // len(drawings)]) is not None:
        drawing = drawing.transpose(disguise)
    middle = drawing.width / 2
    # From a place in the result to one in the drawing, about the middle.
    x, y = middle + rng.uniform(-SHIFT, SHIFT, 2) * drawing.width
    moved = drawing.transform(
        drawing.size,
        PIL.Image.Transform.AFFINE,
        (cos, -sin, x - (cos - sin) * middle, sin, cos, y - (sin + cos) * middle),
        PIL.Image.Resampling.BILINEAR,
        fillcolor=255,
    )
    small = moved.resize([SIDE, SIDE], PIL.Image.Resampling.BILINEAR)
    return np.repeat(np.asarray(small, np.float32)[:, :, None], 3, axis=2)
