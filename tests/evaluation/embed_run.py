"""A slow pass over images, in a process of its own that may be killed.

    python -m tests.evaluation.embed_run FOLDER SECONDS

Sleeps so long before each batch.
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tfrank.common.commands import print_log
from tfrank.evaluation import embed

IMAGES = np.random.default_rng(0).integers(0, 256, [97, 4, 4, 3], np.uint8)
LABELS = np.arange(97) // 3
IDS = np.array([f"image-{n}".encode() for n in range(97)])


def batches_from(start):
    for first in range(start, 97, 4):
        yield {"image": tf.constant(IMAGES[first : first + 4]), "label": LABELS[first : first + 4]}


def main(folder, seconds):
    def embed_fn(images):
        time.sleep(float(seconds))
        return tf.reshape(images, [len(images), -1])

    print_log()
    embed.NOTE_EVERY = 2
    embed.embed_into(folder, embed_fn, batches_from, ids=IDS, labels=LABELS, key="key")


if __name__ == "__main__":
    main(*sys.argv[1:])
