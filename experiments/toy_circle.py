"""PNP's toy experiment (Fig. 6): what a loss keeps of the variance within the training classes.

    python -m experiments.toy_circle [--seeds=10]

A network of two layers of 30 neurons maps points of the plane to a circle. The training classes are four
strips side by side: their classes say nothing of the direction along them. The test classes are four groups
that differ in both directions. The paper gives the network and 150 points a class, but not where the points
lie.

Writes toy_circle.csv, means over the seeds, and toy_circle.png, the embeddings of the first seed.
"""

import keras
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

import tfrank
from experiments.intervals import over_seeds
from experiments.runs import write_results
from tfrank.evaluation import evaluate
from tfrank.evaluation.clusters import class_distances, cluster_agreement

_SEEDS = flags.DEFINE_integer("seeds", 10, "Number of seeds, 0 and up.", lower_bound=2)

POINTS, STEPS, BATCH = 150, 2000, 64
LOSSES = {
    "PNP-O": lambda: tfrank.PNPLoss("o"),
    "PNP-Iu": lambda: tfrank.PNPLoss("iu"),
    "PNP-Ib": lambda: tfrank.PNPLoss("ib"),
    "PNP-Ds": lambda: tfrank.PNPLoss("ds"),
    "PNP-Dq": lambda: tfrank.PNPLoss("dq", warmup_steps=STEPS // 2),
    "Smooth-AP": tfrank.SmoothAPLoss,
    "Contrastive": tfrank.ContrastiveLoss,
}


def points(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points and labels of "train" and "test": `[600, 2]` and `[600]`."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), POINTS)
    strips = np.stack(
        [labels - 1.5 + random.normal(0, 0.12, 4 * POINTS), random.uniform(-1.5, 1.5, 4 * POINTS)], 1
    )
    centers = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    groups = centers[labels] + random.normal(0, 0.25, (4 * POINTS, 2))
    turn = np.array([[1, -1], [1, 1]]) / np.sqrt(2)
    return {
        part: ((rows @ turn).astype(np.float32), labels)
        for part, rows in (("train", strips), ("test", groups))
    }


def embeddings_of(loss: keras.losses.Loss, seed: int) -> dict[str, np.ndarray]:
    """Trains the network and returns the unit-norm embeddings of "train" and "test"."""
    keras.utils.set_random_seed(seed)
    data = points(seed)
    model = keras.Sequential(
        [keras.Input([2]), *(keras.layers.Dense(30, "relu") for _ in range(2)), keras.layers.Dense(2)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    loss.iteration = optimizer.iterations
    model.compile(optimizer, loss)
    batches = tfrank.data.balanced_batches(
        *data["train"], classes_per_batch=4, examples_per_class=BATCH // 4, seed=seed, steps_per_epoch=STEPS
    )
    model.fit(batches, shuffle=False, verbose=0)
    embedded = {part: model.predict(rows, verbose=0) for part, (rows, _) in data.items()}
    return {part: rows / np.linalg.norm(rows, axis=1, keepdims=True) for part, rows in embedded.items()}


def measured(embedded: dict[str, np.ndarray]) -> dict[str, float]:
    """What the table shows of a run."""
    labels = np.repeat(np.arange(4), POINTS)
    of_test = evaluate(embedded["test"], labels, ks=[1]).metrics
    distances = class_distances(embedded["train"], labels)
    return {
        "test Recall@1": of_test["recall_at_1"],
        "test mAP": of_test["map"],
        "test NMI": cluster_agreement(embedded["test"], labels)["nmi"],
        "train mAP": evaluate(embedded["train"], labels, ks=[1]).metrics["map"],
        "train dists@intra": distances["dists_intra"],
        "train dists@inter": distances["dists_inter"],
    }


def figure(shown: dict[str, dict[str, np.ndarray]], seed: int) -> Figure:
    """The points, then a column for each loss: the training embeddings above the test embeddings."""
    labels, data = np.repeat(np.arange(4), POINTS), points(seed)
    drawing = Figure(figsize=(2.1 * (len(shown) + 1), 4.6), layout="constrained")
    all_axes = drawing.subplots(2, len(shown) + 1)
    columns = {"points": {part: rows for part, (rows, _) in data.items()}, **shown}
    for (name, parts), axes in zip(columns.items(), all_axes.T):
        for part, one in zip(("train", "test"), axes):
            rows = parts[part]
            # Classes on circles of their own, so that they do not hide one another.
            radius = 1 if name == "points" else (1 + 0.12 * labels)[:, None]
            one.scatter(*(rows * radius).T, c=labels, cmap="tab10", s=4)
            one.set_aspect("equal")
            if name != "points":
                one.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
            one.set_xticks([])
            one.set_yticks([])
            one.set_title(f"{name}, {part}", fontsize=9)
    return drawing


def main(_):
    rows, shown = [], {}
    for name, make in LOSSES.items():
        runs = [embeddings_of(make(), seed) for seed in range(_SEEDS.value)]
        shown[name] = runs[0]
        values = [measured(run) for run in runs]
        intervals = {column: over_seeds(np.array([one[column] for one in values])) for column in values[0]}
        rows.append({"loss": name, "seeds": len(runs), **{c: str(one) for c, one in intervals.items()}})
        print(*rows[-1].values(), sep="  ", flush=True)
    write_results("toy_circle", rows, figure(shown, 0))


if __name__ == "__main__":
    app.run(main)
