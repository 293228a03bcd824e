"""How results depend on one setting at a time, on Omniglot; the papers' ablations and robustness tests.

    python -m experiments.ablations --source=images_background_small1.zip [--names=alpha,noise] [--seeds=3]

Each ablation is a set of curves: Recall@1 and mAP of a loss against a setting, all else as in
configs/omniglot.py. Runs are kept in docs/experiments/ablations_runs.csv, so that the defaults, which many
curves share, are run once. Writes ablations_NAME.csv and ablations_NAME.png for each: means over the seeds
and 95 % intervals over seeds and test classes, and differences in mAP to the default on the same seeds and
classes.
"""

import os

from absl import app, flags
from matplotlib.figure import Figure

from experiments.intervals import over_seeds_and_classes
from experiments.runs import RESULTS, Result, Run, of_classes, run_all, write_results
from tfrank.configs import omniglot
from tfrank.configs.default import Config

PNP = {variant.capitalize(): ("pnp", {"loss.variant": variant}) for variant in ("o", "ib", "ds", "dq")}
PNP = {f"PNP-{name}": setting for name, setting in PNP.items()}
SMOOTH_AP = {"Smooth-AP": ("smooth_ap", {})}
MAP_Q = {"mAP_Q": ("map_q", {})}
RLL = {"RLL": ("rll", {})}
IMAGES = 128
METRICS = {"Recall@1": "recall_at_1", "mAP": "ap"}

# Name: recipe and fields of the config. Value on the axis: the fields that it changes.
Losses = dict[str, tuple[str, dict[str, object]]]
Axis = dict[object, dict[str, object]]


def of_field(field: str, values: tuple) -> Axis:
    """What each value on the axis changes, where it is that of one field."""
    return {value: {field: value} for value in values}


def of_batches(classes: dict[object, int], examples: dict[object, int]) -> Axis:
    """The same of batches of so many classes and images of each."""
    return {
        value: {"data.classes_per_batch": classes[value], "data.examples_per_class": examples[value]}
        for value in classes
    }


# Name: the title of the axis, the losses, and what each value on the axis changes.
ABLATIONS = {
    "alpha": (
        "alpha of PNP-Dq (PNP, Fig. 8a)",
        {"PNP-Dq": PNP["PNP-Dq"]},
        of_field("loss.alpha", (1.0, 2.0, 4.0, 8.0, 16.0)),
    ),
    "b": (
        "b of PNP-Ib (PNP, Fig. 8b)",
        {"PNP-Ib": PNP["PNP-Ib"]},
        of_field("loss.b", (1.0, 2.0, 4.0, 8.0, 16.0)),
    ),
    "images_per_class": (
        f"images of a class, in batches of {IMAGES} (PNP, Fig. 8c; Smooth-AP, Table 5)",
        {"PNP-Dq": PNP["PNP-Dq"], **SMOOTH_AP},
        of_batches({p: IMAGES // p for p in (2, 4, 8, 16)}, {p: p for p in (2, 4, 8, 16)}),
    ),
    "temperature": (
        "temperature (Smooth-AP, Table 5)",
        {"PNP-Dq": PNP["PNP-Dq"], **SMOOTH_AP},
        of_field("loss.temperature", (0.001, 0.003, 0.01, 0.03, 0.1)),
    ),
    "batch": (
        "images in a batch, 4 of a class (Smooth-AP, Table 5; mAP_Q, Fig. 5)",
        {"PNP-Dq": PNP["PNP-Dq"], **SMOOTH_AP, **MAP_Q},
        of_batches({4 * c: c for c in (8, 16, 32, 64)}, {4 * c: 4 for c in (8, 16, 32, 64)}),
    ),
    "bins": ("bins of mAP_Q (Fig. 4)", MAP_Q, of_field("loss.num_bins", (5, 10, 20, 40))),
    "tie_aware": ("mAP_T in place of mAP_Q (Fig. 8)", MAP_Q, of_field("loss.tie_aware", (False, True))),
    # The same for all in class-balanced batches. Here 256 images are drawn at random, of some classes more.
    "class_weights": (
        "class weights of mAP_Q (Fig. 7)",
        MAP_Q,
        {
            weights: {
                "data.sampler": "uniform",
                "data.classes_per_batch": 64,
                "loss.class_weights": weights,
            }
            for weights in (False, True)
        },
    ),
    "negative_temperature": (
        "T_n of RLL (Table 8)",
        RLL,
        of_field("loss.negative_temperature", (0.0, 5.0, 10.0, 15.0, 20.0)),
    ),
    "margin": ("margin of RLL (Table 10)", RLL, of_field("loss.margin", (0.2, 0.4, 0.6, 0.8))),
    "dynamic": (
        "T_n of RLL at the end of training, 10 at its start (RLL, Table 14)",
        RLL,
        {
            end: {"loss.final_negative_temperature": end, "loss.decay_steps": 600} if end != 10.0 else {}
            for end in (0.0, 5.0, 10.0)
        },
    ),
    # 90 classes become 30, so a batch has 16 of them.
    "merge": (
        "classes merged into one (PNP, Tables 6 and 7)",
        PNP | SMOOTH_AP,
        {
            merged: {
                "data.merge_classes": merged,
                "data.classes_per_batch": 16,
                "data.examples_per_class": 8,
            }
            for merged in (1, 3)
        },
    ),
    "noise": ("share of false labels", PNP | SMOOTH_AP, of_field("data.label_noise", (0.0, 0.1, 0.3))),
}

_SOURCE = flags.DEFINE_string("source", None, "Path of the Omniglot archive or folder.", required=True)
_NAMES = flags.DEFINE_list("names", [], "Which ablations; none: all.")
flags.register_validator(
    "names", lambda given: set(given) <= set(ABLATIONS), f"give one or more of {', '.join(ABLATIONS)}"
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of seeds, 0 and up.", lower_bound=2)
_JOBS = flags.DEFINE_integer("jobs", 1, "Runs at once.", lower_bound=1)


def run_of(recipe: str, fields: dict[str, object], changes: dict[str, object], seed: int) -> Run:
    """The run, without changes to what is the default already, so that it is run once for all curves."""
    defaults = omniglot.get_config(recipe)
    kept = {key: value for key, value in {**fields, **changes}.items() if _at(defaults, key) != value}
    return Run(f"omniglot.py:{recipe}", kept, seed)


def _at(config: Config, key: str) -> object:
    group, field = key.split(".")
    return getattr(getattr(config, group), field)


def figure(rows: list[dict[str, object]], title: str) -> Figure:
    """mAP and Recall@1 against the setting, with bands of 95 %."""
    drawing = Figure(figsize=(8, 3), layout="constrained")
    drawing.supxlabel(title, fontsize=9)
    for axes, metric in zip(drawing.subplots(1, 2), METRICS):
        for loss in dict.fromkeys(row["loss"] for row in rows):
            of_loss = [row for row in rows if row["loss"] == loss]
            places = range(len(of_loss))
            mean, low, high = (
                [float(row[f"{metric}{end}"]) for row in of_loss] for end in ("", " low", " high")
            )
            axes.plot(places, mean, "o-", label=loss)
            axes.fill_between(places, low, high, alpha=0.15)
            axes.set_xticks(places, [str(row["value"]) for row in of_loss])
        axes.set_ylabel(f"{metric} in %")
        axes.legend(fontsize=8)
    return drawing


def table(
    losses: Losses, axis: Axis, results: dict[tuple[str, object], list[Result]]
) -> list[dict[str, object]]:
    """A row for each loss and value: means with intervals, and differences in mAP to the default value."""
    rows = []
    for (loss, value), of_cell in results.items():
        row: dict[str, object] = {"loss": loss, "value": value, "seeds": len(of_cell)}
        for metric, attribute in METRICS.items():
            interval = over_seeds_and_classes(of_classes(of_cell, attribute))
            ends = {"": interval.mean, " low": interval.low, " high": interval.high}
            row |= {f"{metric}{end}": f"{100 * number:.2f}" for end, number in ends.items()}
        default = default_value(*losses[loss], axis)
        change = of_classes(of_cell, "ap") - of_classes(results[loss, default], "ap")
        difference = over_seeds_and_classes(change)
        row |= {f"mAP - {default}": str(difference), "significant": "yes" if difference.significant else "no"}
        rows.append(row)
    return rows


def default_value(recipe: str, fields: dict[str, object], axis: Axis) -> object:
    """The value that changes least of the config."""
    return min(axis, key=lambda value: len(run_of(recipe, fields, axis[value], 0).changes))


def main(_):
    path = os.path.join(RESULTS, "ablations_runs.csv")
    shared = {"data.source": os.path.abspath(_SOURCE.value), "evaluation.baselines": False}
    for name in _NAMES.value or ABLATIONS:
        title, losses, axis = ABLATIONS[name]
        cells = [(loss, value) for loss in losses for value in axis]
        runs = [
            run_of(*losses[loss], axis[value], seed) for seed in range(_SEEDS.value) for loss, value in cells
        ]
        results = run_all(runs, path, shared, jobs=_JOBS.value)
        rows = table(losses, axis, {cell: results[number :: len(cells)] for number, cell in enumerate(cells)})
        write_results(f"ablations_{name}", rows, figure(rows, title))


if __name__ == "__main__":
    app.run(main)
