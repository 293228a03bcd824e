"""A model card: what a trained model is, what it was trained and measured on, and how well it does."""

import os
from collections.abc import Mapping
from typing import Any

from tfrank.common import files, json_files
from tfrank.common.checks import InputError

# Metrics of the card by title.
METRICS = {"Recall@1": "recall_at_1", "Recall@10": "recall_at_10", "mAP": "map", "R-precision": "r_precision"}
FILE = "model_card.md"

_ANYTHING = json_files.anything
# Of the config, what the card names; of metrics and results, what it lists.
_CONFIG = json_files.record(
    {
        **dict.fromkeys(("name", "seed"), _ANYTHING),
        "loss": json_files.record({"name": json_files.text()}, others=True),
        "data": json_files.record(
            {
                **dict.fromkeys(("source", "records", "name"), _ANYTHING),
                "image_size": json_files.whole(-1),
                "resize": json_files.whole(-1),
                "crop": json_files.text(),
            },
            others=True,
        ),
        "model": json_files.record(
            dict.fromkeys(("backbone", "embedding_dim", "weights", "head"), _ANYTHING), others=True
        ),
        "train": json_files.record(dict.fromkeys(("optimizer", "learning_rate"), _ANYTHING), others=True),
    },
    {"evaluation": json_files.record({}, {"image_size": json_files.whole(0)}, others=True)},
    others=True,
)
_METRICS = json_files.dict_of(json_files.dict_of(json_files.none_or(json_files.real())))
_INTERVAL = json_files.list_of(json_files.none_or(json_files.real()), at_least=3, at_most=3)
_RESULTS = json_files.record(
    {},
    {
        "about": json_files.dict_of(_ANYTHING),
        "tfrank": json_files.text(),
        "rankings": _METRICS,
        "models": json_files.dict_of(json_files.dict_of(json_files.dict_of(_INTERVAL))),
    },
    others=True,
)


def write(run: str, folder: str, *, license_name: str = "", dim: int = 0, evaluation: str = "") -> str:
    """Writes the card of a run's model; returns its path.

    Args:
        run: folder of a finished run.
        folder: where to write `model_card.md`.
        license_name: the licence of the model; "" leaves the field to be filled in.
        dim: the first dimensions that the model keeps of the embeddings; 0: all.
        evaluation: folder of the evaluation that measured the model; "": that at the end of training.

    Raises:
        InputError: the run has no results, or they are damaged.
    """
    config = _read(os.path.join(run, "config.json"), _CONFIG)
    found = _results(evaluation or _evaluation_of(run))
    about = {**found.get("about", {}), "tfrank": found.get("tfrank", "")}
    intervals = next(iter(found.get("models", {}).values()), {})
    if evaluation:
        metrics = {"trained": next(iter(found["rankings"].values()))}
    else:
        metrics = _read(os.path.join(run, "metrics.json"), _METRICS)
    path = os.path.join(files.make_folder(folder), FILE)
    with files.atomic_write(path, "w") as file:
        file.write(text(config, metrics, about, intervals, license_name, dim))
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
    dim: int = 0,
) -> str:
    """Returns the card as Markdown.

    Args:
        config: the run's config.
        metrics: by model ("start", "trained"), the metrics by name.
        about: facts on the evaluation by name, as a report has them.
        intervals: by metric and model, the mean with the ends of its 95 % interval, or None for these.
        license_name: the licence of the model, or "".
        dim: the first dimensions that the model keeps of the embeddings; 0: all.
    """
    data, model, train = config["data"], config["model"], config["train"]
    side = config.get("evaluation", {}).get("image_size") or data["image_size"]
    source = os.path.basename(str(data["source"] or data["records"]).rstrip("/")) or data["name"]
    rows = [
        [name, *(_cell(values.get(key), intervals.get(key, {}).get(name)) for key in METRICS.values())]
        for name, values in metrics.items()
    ]
    table = [["", *METRICS], ["---"] * (len(METRICS) + 1), *rows]
    cut = f"the first {dim} of " if dim else ""
    facts = {
        "Licence": license_name or "(fill in)",
        "Network": f"{model['backbone']}, {cut}{model['embedding_dim']} dimensions",
        "Starting weights": f"{os.path.basename(str(model['weights']))}, head: {model['head']}",
        "Input": f"RGB images, {side} x {side} pixels",
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
        *([] if model["backbone"] == "vectors" else preparation(data, side)),
        "## Results on test classes that were not trained on",
        "",
        *([f"Of all {model['embedding_dim']} dimensions, not of the first {dim}.", ""] if dim else []),
        *(f"| {' | '.join(row)} |" for row in table),
        "",
        *(["In brackets: the 95 % interval, from the bootstrap of classes.", ""] if "(" in str(rows) else []),
        "## Limits",
        "",
        "The metrics hold for images like those of the test set. Measure again on images of another kind.",
    ]
    return "\n".join(lines) + "\n"


def preparation(data: Mapping[str, Any], size: int) -> list[str]:
    """Returns how an image becomes the model's input, in words and as lines of code.

    Args:
        data: the section `data` of the run's config.
        size: the side of the model's images, in pixels, which may differ from that in training.
    """
    resize = round((data["resize"] or data["image_size"]) * size / data["image_size"])
    keeps_proportions = data["crop"] in ("random_part", "scaled")
    fit = data.get("fit", "centre") if keeps_proportions else "whole"
    if fit == "centre":
        words = f"Resize the shorter side to {resize} pixels and keep the proportions"
        sides = f"[round(side * {resize} / min(image.size)) for side in image.size]"
    elif fit == "wider":
        words = f"Resize the shorter side to {resize} pixels, the longer to {resize} (longer / shorter)^(2/3)"
        sides = f"[round({resize} * (side / min(image.size)) ** (2 / 3)) for side in image.size]"
    else:
        words = f"Stretch the whole image to {resize} x {resize} pixels, whatever its proportions"
        sides = f"({resize}, {resize})"
    box = f"left, top = ((side - {size}) // 2 for side in image.size)"
    return [
        "## How to prepare an image",
        "",
        f"Turn it upright. {words}, bilinearly, with antialiasing. Crop the central {size} x {size} pixels."
        " Give RGB values from 0 to 255 as float32; the network scales them itself. An image that is prepared"
        " otherwise has another embedding: where the shorter side is resized and the centre cropped, features"
        " of MobileNetV2 have a cosine of .90 for stretched images and .86 for those with black bars. The"
        " signature `encoded` of the SavedModel does all of this for"
        " JPEG, PNG and WebP, but ignores colour profiles.",
        "",
        "```python",
        'image = PIL.ImageOps.exif_transpose(PIL.Image.open("photo.jpg")).convert("RGB")',
        f"image = image.resize({sides}, PIL.Image.Resampling.BILINEAR)",
        box,
        f"images = np.asarray(image.crop((left, top, left + {size}, top + {size})), np.float32)[None]",
        "```",
        "",
    ]


def _cell(value, interval):
    """Returns a metric, with its interval if there is one; "" if the model does not have the metric."""
    if value is None:
        return ""
    _, low, high = interval or (None, None, None)
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _evaluation_of(run):
    """Returns the folder of the evaluation of a run's test set; "" if it has none."""
    evaluations = os.path.join(run, "evaluation")
    names = sorted(os.listdir(evaluations)) if os.path.isdir(evaluations) else []
    folders = (os.path.join(evaluations, name) for name in names)
    return next((one for one in folders if os.path.exists(os.path.join(one, "metrics.json"))), "")


def _results(evaluation):
    """Returns what the file of an evaluation holds; {} if there is no evaluation."""
    return _read(os.path.join(evaluation, "metrics.json"), _RESULTS) if evaluation else {}


def _read(path, check):
    try:
        return json_files.read(path, check, "Restore it, or train again.")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Give the folder of a finished run.") from None
