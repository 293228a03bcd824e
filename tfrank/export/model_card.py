"""A model card: what a trained model is, what it was trained and measured on, and how well it does."""

import os
from collections.abc import Mapping
from typing import Any

from tfrank.common import files, json_files
from tfrank.common.checks import InputError

# Metrics of the card by name; if a test set has none of them, the first ones that it has, by their names.
METRICS = {
    "recall_at_1": "Recall@1",
    "recall_at_10": "Recall@10",
    "map": "mAP",
    "trapezoid_map": "mAP",
    "r_precision": "R-precision",
}
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
            {
                "fit": json_files.text(),
                "region": json_files.text(),
                "test_region": json_files.text(),
                "box_margin": json_files.real(0),
            },
            others=True,
        ),
        "model": json_files.record(
            dict.fromkeys(("backbone", "embedding_dim", "weights", "head"), _ANYTHING), others=True
        ),
        "train": json_files.record(dict.fromkeys(("optimizer", "learning_rate"), _ANYTHING), others=True),
    },
    {
        "evaluation": json_files.record(
            {}, {"image_size": json_files.whole(0), "full_size": json_files.flag()}, others=True
        )
    },
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


def write(
    run: str,
    folder: str,
    *,
    license_name: str = "",
    dim: int = 0,
    after: str = "",
    measured: tuple[str, Mapping[str, Any]] | None = None,
) -> str:
    """Writes the card of a run's model; returns its path.

    Args:
        run: folder of a finished run.
        folder: where to write `model_card.md`.
        license_name: the licence of the model; "" leaves the field to be filled in.
        dim: the first dimensions that the model keeps of the embeddings; 0: all.
        after: the SavedModel whose embeddings the model takes, if it was joined with it; else "".
        measured: folder of the evaluation that measured the model, and the config that it used; None: that at
            the end of training.

    Raises:
        InputError: the run has no results, or they are damaged.
    """
    if measured:
        evaluation, config = measured
        found = _read(os.path.join(evaluation, "metrics.json"), _RESULTS)
        metrics = {"trained": next(iter(found["rankings"].values()))}
    else:
        config = _read(os.path.join(run, "config.json"), _CONFIG)
        metrics = _read(os.path.join(run, "metrics.json"), _METRICS)
        found = _evaluation_of(run, metrics.get("trained", {}))
    about = {**found.get("about", {}), "tfrank": found.get("tfrank", "")}
    intervals = next(iter(found.get("models", {}).values()), {})
    path = os.path.join(files.make_folder(folder), FILE)
    with files.atomic_write(path, "w") as file:
        file.write(text(config, metrics, about, intervals, license_name, dim, after))
    return path


def _of_vectors(after):
    """What differs for a head on the embeddings of another model, of one that it is joined with if any."""
    if not after:
        return {
            "Network": "a head on vectors that another model has computed",
            "Input": "vectors of that model, of any norm",
        }
    *_, above, name = ["", *after.rstrip("/").split("/")]
    return {
        "Network": f"{above if name == 'saved_model' else name}, and a head on its embeddings",
        "Input": "images as that model takes them; its own card says how to prepare them",
    }


def text(
    config: dict[str, Any],
    metrics: dict[str, dict[str, float]],
    about: dict[str, Any],
    intervals: dict[str, dict[str, list]],
    license_name: str,
    dim: int = 0,
    after: str = "",
) -> str:
    """Returns the card as Markdown.

    Args:
        config: the run's config.
        metrics: by model ("start", "trained"), the metrics by name.
        about: facts on the evaluation by name, as a report has them.
        intervals: by metric and model, the mean with the ends of its 95 % interval, or None for these.
        license_name: the licence of the model, or "".
        dim: the first dimensions that the model keeps of the embeddings; 0: all.
        after: the SavedModel that the model is joined with, or "".
    """
    data, model, train = config["data"], config["model"], config["train"]
    evaluation, of_vectors = config.get("evaluation", {}), model["backbone"] == "vectors"
    side = 0 if evaluation.get("full_size") else evaluation.get("image_size") or data["image_size"]
    source = os.path.basename(str(data["source"] or data["records"]).rstrip("/")) or data["name"]
    measured = list(dict.fromkeys(key for values in metrics.values() for key in values))
    keys = [key for key in METRICS if key in measured] or measured[: len(METRICS)]
    rows = [
        [name, *(_cell(values.get(key), intervals.get(key, {}).get(name)) for key in keys)]
        for name, values in metrics.items()
    ]
    table = [["", *(METRICS.get(key, key) for key in keys)], ["---"] * (len(keys) + 1), *rows]
    cut = f"the first {dim} of " if dim else ""
    facts = {
        "Licence": license_name or "(fill in)",
        "Network": f"{model['backbone']}, {cut}{model['embedding_dim']} dimensions",
        "Starting weights": f"{os.path.basename(str(model['weights']))}, head: {model['head']}",
        "Input": f"RGB images{f', {side} x {side} pixels' if side else ' of any size'}",
        **(_of_vectors(after) if of_vectors else {}),
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
        *([] if of_vectors else preparation(data, side)),
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
        size: the side of the model's images, in pixels, which may differ from that in training; 0: each image
            has its own size.
    """
    turned = [
        'image = PIL.ImageOps.exif_transpose(PIL.Image.open("photo.jpg")).convert("RGBA")',
        'image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, "white"), image).convert("RGB")',
    ]
    opening = ["## How to prepare an image", "", *_region(data)]
    if not size:
        words = "Turn it upright, and keep its size."
        code = [*turned, "images = np.asarray(image, np.float32)[None]"]
        return [*opening, f"{words}{_VALUES}", "", "```python", *code, "```", ""]
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
        *opening,
        f"Turn it upright. {words}, bilinearly, with antialiasing. Crop the central {size} x {size} pixels."
        f"{_VALUES} An image that is prepared"
        " otherwise has another embedding: where the shorter side is resized and the centre cropped, features"
        " of MobileNetV2 have a cosine of .90 for stretched images and .86 for those with black bars.",
        "",
        "```python",
        *turned,
        f"image = image.resize({sides}, PIL.Image.Resampling.BILINEAR)",
        box,
        f"images = np.asarray(image.crop((left, top, left + {size}, top + {size})), np.float32)[None]",
        "```",
        "",
    ]


_VALUES = (
    " Give RGB values from 0 to 255 as float32; the network scales them itself. The signature `encoded` of"
    " the SavedModel does all of this for JPEG, PNG and WebP, but ignores colour profiles."
)


def _cell(value, interval):
    """Returns a metric, with its interval if there is one; "" if the model does not have the metric."""
    if value is None:
        return ""
    _, low, high = interval or (None, None, None)
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _region(data):
    """Returns what is to be cut out of an image before all else, if anything."""
    region = data.get("test_region") or data.get("region", "image")
    margin = f", extended by {data.get('box_margin', 0):.0%} of its sides" * bool(data.get("box_margin"))
    said = {
        "box": f"The model has seen the box of each image that has one{margin}: cut it out first.",
        "face": "The model has seen faces, aligned by five points: align them first.",
    }
    return [f"{said[region]} The signature `encoded` does not.", ""] if region in said else []


def _evaluation_of(run, trained):
    """Returns what the evaluation holds whose metrics are those of a run; {} if there is none.

    A run may have been measured again since, on other images or with another whitening.
    """
    evaluations = os.path.join(run, "evaluation")
    for name in sorted(os.listdir(evaluations)) if os.path.isdir(evaluations) else []:
        path = os.path.join(evaluations, name, "metrics.json")
        found = _read(path, _RESULTS) if os.path.exists(path) else {}
        for values in found.get("rankings", {}).values():
            shared = trained.keys() & values.keys()
            if shared and all(trained[key] == values[key] for key in shared):
                return found
    return {}


def _read(path, check):
    try:
        return json_files.read(path, check, "Restore it, or train again.")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Give the folder of a finished run.") from None
