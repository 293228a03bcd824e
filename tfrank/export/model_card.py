"""A model card: what a trained model is, what it was trained and measured on, and how well it does."""

import json
import os
from typing import Any

from tfrank.common import files
from tfrank.common.checks import InputError

# Metrics of the card by title.
METRICS = {"Recall@1": "recall_at_1", "Recall@10": "recall_at_10", "mAP": "map", "R-precision": "r_precision"}
FILE = "model_card.md"


def write(run: str, folder: str, *, license_name: str = "") -> str:
    """Writes the card of a run's model; returns its path.

    Args:
        run: folder of a finished run.
        folder: where to write `model_card.md`.
        license_name: the licence of the model; "" leaves the field to be filled in.

    Raises:
        InputError: the run has no results, or they are damaged.
    """
    config, metrics = (_read(os.path.join(run, name)) for name in ("config.json", "metrics.json"))
    about, intervals = _evaluation(run)
    path = os.path.join(files.make_folder(folder), FILE)
    with files.atomic_write(path, "w") as file:
        file.write(text(config, metrics, about, intervals, license_name))
    return path


# What differs for a head on the embeddings of another model.
_OF_VECTORS = {
    "Network": "a head on vectors that another model has computed",
    "Input": "vectors of that model, of any norm",
}


def text(
    config: dict[str, Any],
    metrics: dict[str, dict[str, float]],
    about: dict[str, Any],
    intervals: dict[str, dict[str, list]],
    license_name: str,
) -> str:
    """Returns the card as Markdown.

    Args:
        config: the run's config.
        metrics: by model ("start", "trained"), the metrics by name.
        about: facts on the evaluation by name, as a report has them.
        intervals: by metric and model, the mean with the ends of its 95 % interval, or None for these.
        license_name: the licence of the model, or "".
    """
    data, model, train = config["data"], config["model"], config["train"]
    source = os.path.basename(str(data["source"] or data["records"]).rstrip("/")) or data["name"]
    rows = [
        [name, *(_cell(values.get(key), intervals.get(key, {}).get(name)) for key in METRICS.values())]
        for name, values in metrics.items()
    ]
    table = [["", *METRICS], ["---"] * (len(METRICS) + 1), *rows]
    facts = {
        "Licence": license_name or "(fill in)",
        "Network": f"{model['backbone']}, {model['embedding_dim']} dimensions",
        "Starting weights": f"{os.path.basename(str(model['weights']))}, head: {model['head']}",
        "Input": f"RGB images, {data['image_size']} x {data['image_size']} pixels",
        **(_OF_VECTORS if model["backbone"] == "vectors" else {}),
        "Output": "a vector of unit norm; the dot product of two is their similarity",
        "Training data": f"{source} ({data['name']})",
        "Loss": config["loss"]["name"],
        "Optimizer": f"{train['optimizer']}, learning rate {train['learning_rate']}, seed {config['seed']}",
        "tfrank": about.get("tfrank", ""),
    }
    known = ("model", "tfrank")
    facts |= {name.capitalize(): value for name, value in about.items() if name not in known}
    lines = [
        f"# {config['name']} ({source})",
        "",
        *(f"- **{name}**: {value}" for name, value in facts.items() if value != ""),
        "",
        "## Results on test classes that were not trained on",
        "",
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        *(["In brackets: the 95 % interval, from the bootstrap of classes.", ""] if "(" in str(rows) else []),
        "## Limits",
        "",
        "The metrics hold for images like those of the test set. Measure again on images of another kind.",
    ]
    return "\n".join(lines) + "\n"


def _cell(value, interval):
    """Returns a metric, with its interval if there is one; "" if the model does not have the metric."""
    if value is None:
        return ""
    _, low, high = interval or (None, None, None)
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _evaluation(run):
    """Returns the facts on the evaluation of a run's test set, and its intervals; {}, {} if it has none."""
    evaluations = os.path.join(run, "evaluation")
    for name in sorted(os.listdir(evaluations)) if os.path.isdir(evaluations) else []:
        path = os.path.join(evaluations, name, "metrics.json")
        if os.path.exists(path):
            found = _read(path)
            about = {**found.get("about", {}), "tfrank": found.get("tfrank", "")}
            return about, next(iter(found.get("models", {}).values()), {})
    return {}, {}


def _read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Give the folder of a finished run.") from None
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}).") from None
