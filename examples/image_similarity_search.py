"""keras.io's example "Metric learning for image similarity search", done with tfrank.

    python examples/image_similarity_search.py                 # ten letters in colour, without a download
    python examples/image_similarity_search.py --data=cifar10  # the original's data, which Keras downloads

The network and the optimizer are the original's: three convolutions, 8 dimensions, Adam at 1e-3. Its loss, a
cross-entropy that finds each anchor's positive among those of the ten classes, is measured beside two of
tfrank, on as many images in all; these take eight of each class, and so a quarter of the steps. The original
reports neither Recall@1 nor mAP. `letters` are images of CIFAR-10's shape, 32 x 32 in colour and ten classes:
A to J in the typefaces of matplotlib, tested in typefaces that training lacks.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfrank
from tfrank.data.sources.letters import TYPEFACES, read_letters
from tfrank.evaluation import evaluate


def letters(copies: int):
    """Returns images and labels to train and to test on: A to J, `copies` of each in each typeface."""
    draw = np.random.default_rng(0)
    parts = {False: ([], []), True: ([], [])}
    for seed in range(copies):
        for one in read_letters(train=["Latin"], test=[], seed=seed):
            if "A" <= chr(one.label) <= "J":
                ink, paper = draw.uniform(160, 255, 3), draw.uniform(0, 95, 3)
                share = tf.image.resize(tf.io.decode_png(one.encoded), [32, 32], antialias=True).numpy() / 255
                images, labels = parts[TYPEFACES.index(one.id.split("/")[-1]) % 3 == 0]
                images.append((paper + share * (ink - paper)).astype(np.uint8))
                labels.append(one.label - ord("A"))
    return tuple((np.stack(images), np.array(labels)) for images, labels in parts.values())


def network():
    """Returns the original's network."""
    layers = [keras.layers.Conv2D(filters, 3, strides=2, activation="relu") for filters in (32, 64, 128)]
    return keras.Sequential(
        [
            keras.Input([32, 32, 3]),
            keras.layers.Rescaling(1 / 255),
            *layers,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(8),
            keras.layers.UnitNormalization(),
        ]
    )


def cross_entropy_of_pairs(labels, embeddings):
    """The original's loss: which of the ten positives is an anchor's? A batch holds pairs, side by side."""
    similarities = tf.matmul(embeddings[0::2], embeddings[1::2], transpose_b=True) / 0.2
    right = tf.range(tf.shape(similarities)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(right, similarities))


def confusion(embeddings, labels, near=10):
    """Returns how many of the nearest images of each class (row) are of each class (column), as shares."""
    similarities = embeddings @ embeddings.T
    np.fill_diagonal(similarities, -1)
    nearest = labels[np.argpartition(-similarities, near, axis=1)[:, :near]]
    counts = np.zeros([10, 10])
    np.add.at(counts, (labels[:, None], nearest), 1)
    return counts / counts.sum(axis=1, keepdims=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--data", choices=["letters", "cifar10"], default="letters")
    arguments.add_argument("--images", type=int, default=64_000, help="images that a loss is trained on")
    arguments.add_argument("--copies", type=int, default=12, help="copies of each letter in each typeface")
    options = arguments.parse_args()
    if options.data == "letters":
        train, test = letters(options.copies)
    else:
        train, test = keras.datasets.cifar10.load_data()
    labels = np.ravel(test[1])
    print(f"{len(train[0]):,} images to train on, {len(test[0]):,} to test on")
    runs = {
        "cross-entropy of pairs (the original)": (cross_entropy_of_pairs, 2),
        "Smooth-AP": (tfrank.SmoothAPLoss(temperature=0.05), 8),
        "SupCon": (tfrank.SupConLoss(temperature=0.1), 8),
    }
    for name, (loss, examples_per_class) in runs.items():
        keras.utils.set_random_seed(0)
        batches = tfrank.data.balanced_batches(
            train[0], np.ravel(train[1]), classes_per_batch=10, examples_per_class=examples_per_class
        )
        model = network()
        model.compile(keras.optimizers.Adam(1e-3), loss=loss)
        steps = options.images // (10 * examples_per_class)
        model.fit(batches.repeat(), steps_per_epoch=steps, shuffle=False, verbose=0)
        embeddings = model.predict(test[0], batch_size=256, verbose=0)
        found = evaluate(embeddings, labels).metrics
        print(f"{name:<40} Recall@1 {found['recall_at_1']:.3f}  mAP {found['map']:.3f}", flush=True)
    print("Classes of the 10 nearest images of each class, in percent (SupCon):")
    print(np.round(100 * confusion(embeddings, labels)).astype(int))


if __name__ == "__main__":
    main()
