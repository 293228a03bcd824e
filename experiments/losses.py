"""Every loss on the same data, each with its own learning rate, and which differences are significant.

    python -m experiments.losses --data=omniglot --source=images_background_small1.zip [--seeds=10] [--jobs=1]
    python -m experiments.losses --data=birds --source=FEATURES.npz
    python -m experiments.losses --data=birds_network --source=LIST.csv [--losses="PNP-Dq,RLL"]

The learning rate of each loss is chosen on training classes that are held out, by mAP, before any test class
is seen. `omniglot` trains a small network from random weights (configs/omniglot.py) on alphabets; the rate is
chosen by the mean of two of them, each held out in turn. `birds` and `caltech101` train a linear head on
features that a pretrained network has computed. `birds_network` and `caltech101_network` train the pretrained
network on the photos, as configs/own_images_whole.py does: the best weights count, by training classes
that it holds out itself. `birds_small_network` and `caltech101_small_network` train a small network on the
photos from random weights; the last weights count. Features and lists come from `python -m
experiments.features`.

Runs are kept in docs/experiments/losses_DATA_runs.csv; the table is losses_DATA.csv, the figure
losses_DATA.png. Intervals are of 95 %, by a bootstrap over seeds and test classes; the differences are
to the first loss, of the same seeds and classes.
"""

import os
from typing import NamedTuple

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

from experiments.intervals import over_seeds_and_classes
from experiments.recipes import LOSSES
from experiments.runs import RESULTS, Result, Run, of_classes, run_all, write_results
from tfrank.models.packaged import PACKAGED

METRICS = {"recall_at_1": "Recall@1", "ap": "mAP"}
FAR_BELOW = 20  # points of mAP below the median: outside of the figure


class Setting(NamedTuple):
    """What all runs on a data set share.

    Attributes:
        config: the config file.
        fields: config fields of all runs.
        held_out: config fields of the runs that choose the learning rate, for each part that is held out.
        rates: the learning rates.
    """

    config: str
    fields: dict[str, object]
    held_out: tuple[dict[str, object], ...]
    rates: tuple[float, ...]


# Features and photos have one part of the training classes that is held out (`experiments.features`).
PARTS_HELD_OUT = ({"data.train": ["fit"], "data.test": ["held_out"]},)
# A head on frozen features, the last weights, all training classes: what the loss itself does.
HEADS = Setting(
    "own_embeddings.py",
    {"data.validation_classes": 0, "train.start_share": 0.0, "data.train": ["fit", "held_out"]},
    PARTS_HELD_OUT,
    (3e-5, 1e-4, 3e-4, 1e-3),
)
# The whole network, as the config of own photos trains it.
NETWORKS = Setting(
    "own_images_whole.py",
    {
        "data.name": "csv",
        "data.fit": "centre",
        "model.weights": PACKAGED["mobilenet_v2"].weights,
        "data.train": ["fit", "held_out"],
    },
    PARTS_HELD_OUT,
    (1e-5, 3e-5, 1e-4, 3e-4),
)
# A small network from random weights, at 32 x 32 pixels, without the softmax that the config adds.
SMALL_NETWORKS = Setting(
    "own_images_whole.py",
    {
        "data.name": "csv",
        "data.train": ["fit", "held_out"],
        "data.validation_classes": 0,
        "model.weights": "random",
        "train.class_loss_weight": 0.0,
    },
    PARTS_HELD_OUT,
    (1e-4, 3e-4, 1e-3, 3e-3),
)
SETTINGS = {
    "omniglot": Setting(
        "omniglot.py",
        {},
        (
            {"data.train": ["Korean", "Latin"], "data.test": ["Balinese"]},
            {"data.train": ["Balinese", "Korean"], "data.test": ["Latin"]},
        ),
        (3e-4, 1e-3, 3e-3),
    ),
    "birds": HEADS,
    # Features of objects are nearer to the goal than those of birds, so the best rates are lower.
    "caltech101": HEADS._replace(rates=(1e-5, 3e-5, 1e-4, 3e-4)),
    "birds_network": NETWORKS,
    "caltech101_network": NETWORKS,
    "birds_small_network": SMALL_NETWORKS,
    "caltech101_small_network": SMALL_NETWORKS,
}

_DATA = flags.DEFINE_enum("data", "omniglot", list(SETTINGS), "What to train on.")
_SOURCE = flags.DEFINE_string("source", None, "Path of the data.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 10, "Number of seeds, 0 and up.", lower_bound=1)
_LOSSES = flags.DEFINE_list(
    "losses", list(LOSSES), "Which losses; the first is what others are compared with."
)
flags.register_validator(
    "losses", lambda given: set(given) <= set(LOSSES), f"give one or more of {'; '.join(LOSSES)}"
)
_JOBS = flags.DEFINE_integer("jobs", 1, "Runs at once.", lower_bound=1)


def chosen_rates(
    setting: Setting, losses: list[str], path: str, shared: dict[str, object], jobs: int
) -> dict[str, float]:
    """The learning rate of each loss with the largest mean mAP on the held-out training classes, seed 0."""
    runs = [
        _run(setting, loss, {**held_out, "train.learning_rate": rate}, 0)
        for held_out in setting.held_out
        for rate in setting.rates
        for loss in losses
    ]
    maps = np.array([result.metrics["map"] for result in run_all(runs, path, shared, jobs=jobs)])
    means = maps.reshape(len(setting.held_out), len(setting.rates), len(losses)).mean(axis=0)
    return dict(zip(losses, np.array(setting.rates)[means.argmax(axis=0)].tolist()))


def _run(setting: Setting, loss: str, changes: dict[str, object], seed: int) -> Run:
    recipe, fields = LOSSES[loss]
    return Run(f"{setting.config}:{recipe}", {**setting.fields, **fields, **changes}, seed)


def table(results: dict[str, list[Result]], rates: dict[str, float]) -> list[dict[str, object]]:
    """A row per loss, best mAP first: means, their intervals, and differences to the first loss."""
    values = {
        loss: {metric: of_classes(of_loss, metric) for metric in METRICS} for loss, of_loss in results.items()
    }
    first = next(iter(results))
    rows = []
    for loss, metrics in values.items():
        row = {"loss": loss, "learning_rate": rates[loss], "seeds": len(results[loss])}
        for metric, title in METRICS.items():
            difference = over_seeds_and_classes(metrics[metric] - values[first][metric])
            row |= {
                title: f"{100 * metrics[metric].mean():.2f}",
                f"{title} - {first}": "" if loss == first else str(difference),
                f"{title} differs": "" if loss == first else ("yes" if difference.significant else "no"),
            }
        row["dists@intra"], row["dists@inter"] = (
            f"{np.mean([result.metrics[name] for result in results[loss]]):.3f}"
            for name in ("dists_intra", "dists_inter")
        )
        row["seconds"] = round(float(np.median([result.seconds for result in results[loss]])))
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["mAP"]))


def figure(results: dict[str, list[Result]]) -> Figure:
    """mAP of each loss, best on top: each seed a dot, the mean a line; a number if far below all others."""
    maps = {loss: [100 * result.ap.mean() for result in of_loss] for loss, of_loss in results.items()}
    names = sorted(maps, key=lambda loss: np.mean(maps[loss]))
    middle = np.median([np.mean(values) for values in maps.values()])
    drawing = Figure(figsize=(7, 0.26 * len(names) + 1), layout="constrained")
    axes = drawing.subplots()
    axes.set_yticks(range(len(names)), names)
    for height, loss in enumerate(names):
        mean = np.mean(maps[loss])
        if mean < middle - FAR_BELOW:
            axes.text(0.01, height, f"{mean:.1f}", transform=axes.get_yaxis_transform(), va="center")
            continue
        axes.plot(maps[loss], [height] * len(maps[loss]), ".", color="tab:blue", alpha=0.5)
        axes.plot([mean], [height], "|", color="black", markersize=12)
    axes.set_xlabel("mAP in % (dots: seeds; line: mean)")
    axes.grid(axis="x", alpha=0.3)
    return drawing


def main(_):
    name, setting, losses = _DATA.value, SETTINGS[_DATA.value], _LOSSES.value
    path = os.path.join(RESULTS, f"losses_{name}_runs.csv")
    shared = {"data.source": os.path.abspath(_SOURCE.value), "evaluation.baselines": False}
    rates = chosen_rates(setting, losses, path, shared, _JOBS.value)
    # All losses with one seed before the next seed, so that a stopped experiment compares all of them.
    runs = [
        _run(setting, loss, {"train.learning_rate": rates[loss]}, seed)
        for seed in range(_SEEDS.value)
        for loss in losses
    ]
    done = run_all(runs, path, shared, jobs=_JOBS.value)
    results = {loss: done[number :: len(losses)] for number, loss in enumerate(losses)}
    rows = table(results, rates)
    write_results(f"losses_{name}", rows, figure(results))
    columns = ("Recall@1", "mAP", f"Recall@1 - {losses[0]}", f"mAP - {losses[0]}")
    for row in [{column: column for column in rows[0]}, *rows]:
        print(f"{row['loss']:<20}", *(f"{row[column]:>26}" for column in columns))


if __name__ == "__main__":
    app.run(main)
