"""The losses that benchmarks measure, their settings, and the batches that they get.

Losses with proxies have those of 1,000 classes. "contrastive-memory" has a full memory of 8,192 past
embeddings. "pnp-matryoshka" is applied to the first 256, 128 and 64 dimensions too; so is any other loss.
"asymmetric" (of PNP), "regression" and "relational" compare with random embeddings of a teacher.

Layouts of the batch: "4" and "32" images per class, and "quarter": one class is a quarter of the
batch, the others have 4.
"""

import numpy as np

from benchmarks.peers import MEMORY

# Losses that are not at their defaults.
VARIANTS = {
    "triplet-hard": ("triplet", {"mining": "hard"}),
    "triplet-all": ("triplet", {"mining": "all"}),
    # The classes of `labels_of` in twelve categories, as those of Stanford Online Products.
    "hierarchical_ap-12": (
        "hierarchical_ap",
        {"labels": np.arange(-1, 8192), "categories": np.arange(-1, 8192) % 12},
    ),
}
MATRYOSHKA = "-matryoshka"
DIM, NUM_CLASSES, MEMORY_ROWS = 512, 1000, 8192


def labels_of(layout: str, batch: int) -> np.ndarray:
    """`[batch]` labels in random order: `layout` images per class, or one class of a quarter."""
    if layout == "quarter":
        labels = np.arange(batch) // 4
        labels[: batch // 4] = -1
    else:
        labels = np.arange(batch) // int(layout)
    return np.random.default_rng(0).permutation(labels)


def rows_of(labels: np.ndarray, clustered: bool = False) -> np.ndarray:
    """`[batch, DIM]` random embeddings of these labels, the same on every device.

    Args:
        labels: of `labels_of`.
        clustered: whether those of a class are near one another.
    """
    rng = np.random.default_rng(1)
    rows = rng.standard_normal([len(labels), DIM]).astype(np.float32)
    if clustered:
        rows += 0.35 * rng.standard_normal([len(labels) + 1, DIM]).astype(np.float32)[labels]
    return rows


def build(name: str):
    """A loss by name, and its layer of proxies, None if it has no proxies; the same on every device."""
    import tensorflow as tf

    from tfrank import losses
    from tfrank.losses.proxies import PROXY_LOSSES

    if name.endswith(MATRYOSHKA):
        loss, layer = build(name.removesuffix(MATRYOSHKA))
        return losses.MatryoshkaLoss(loss, (DIM, DIM // 2, DIM // 4, DIM // 8)), layer
    if name in PROXY_LOSSES:
        loss = losses.get(name, labels=range(NUM_CLASSES))
        layer = loss.proxies()
        layer.build([None, DIM])
        layer.proxies.assign(np.random.default_rng(2).standard_normal(layer.proxies.shape))
        return loss, layer
    if name.endswith(MEMORY):
        # A memory that takes part at once.
        loss = losses.CrossBatchMemory(losses.get(name.removesuffix(MEMORY)), MEMORY_ROWS, warm_up=0)
        rows = np.random.default_rng(3).standard_normal([MEMORY_ROWS, DIM]).astype(np.float32)
        loss.labels.assign(tf.range(MEMORY_ROWS, dtype=tf.int64) // 4)
        loss.embeddings.assign(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        return loss, None
    teachers = {
        "asymmetric": losses.AsymmetricLoss(losses.PNPLoss()),
        "regression": losses.RegressionLoss(),
        "relational": losses.RelationalLoss(),
    }
    if name in teachers:
        teacher = tf.random.stateless_normal([MEMORY_ROWS, DIM], [0, 3])
        return lambda labels, x: teachers[name].against(labels, x, teacher[: tf.shape(x)[0]]), None
    name, settings = VARIANTS.get(name, (name, {}))
    return losses.get(name, **settings), None
