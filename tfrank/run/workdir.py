"""Config and record fingerprints in a run's folder: a resumed run must not silently be another one."""

import json
import os
import re
from collections.abc import Callable

from ml_collections import ConfigDict

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.training.checkpoints import saved_checkpoints

# Values of `config.data.name` for a user's own data, whose path then names the run; endings cut off the path.
OWN_DATA = ("folder", "csv", "embeddings", "tfrecords")
ENDS = r"\.(csv|npz|parquet|zip|tgz|tar(\.\w+)?)$"
# Paths of records and their sources may change: records are compared by content.
PATHS = ("data.source", "data.records", "data.test_records")
# Fields that a resumed run may change: its length, output, devices and paths, and what only evaluation reads.
# A dot at the end stands for all fields of a group.
CHANGEABLE = (
    *PATHS,
    "dry_run",
    "train.steps",
    "train.epochs",
    "train.log_every",
    "train.strategy",
    "evaluation.",
)
# Fields that the records depend on. Until a step is saved, only these must stay the same.
RECORD_FIELDS = ("data.name", "data.train", "data.test", "data.shards")
# Fields that define which checkpoints fit.
MODEL_FIELDS = ("model.",)


def default_workdir(config: ConfigDict) -> str:
    """Returns the default folder of a run, named after its config, the path of own data, and its loss.

    `--config.data.records=records/photos` and `--config.data.source=photos.zip` both give
    `runs/own_images_photos_pnp`.
    """
    names = [config.name, config.loss.name]
    path = config.data.records or config.data.source
    if path and config.data.name in OWN_DATA:
        names.insert(1, re.sub(ENDS, "", os.path.basename(os.path.abspath(path)), flags=re.IGNORECASE))
    return os.path.join("runs", re.sub(r"[^\w.-]+", "_", "_".join(names)))


def check_config_of(workdir: str, config: ConfigDict) -> None:
    """Saves the resolved config in a new workdir, or compares it with the saved one.

    A saved config is kept until `save_config` replaces it.

    Raises:
        InputError: fields differ that a resumed run may not change; names them all.
    """
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        files.write_json(path, json.loads(config.to_json()))
    elif _steps_saved(workdir):
        _compare(path, config, lambda field: not _among(field, CHANGEABLE))
    else:
        _compare(path, config, lambda field: _among(field, RECORD_FIELDS))


def save_config(workdir: str, config: ConfigDict, steps: int) -> None:
    """Saves the config of a run of `steps` steps; raises InputError if it has taken more already."""
    taken = _steps_saved(workdir)
    if steps < taken:
        raise InputError(
            f"The run in {workdir} has taken {taken:,} steps already, so it cannot end at step {steps:,}."
            " Give as many steps or more, or choose another --workdir."
        )
    files.write_json(os.path.join(workdir, "config.json"), json.loads(config.to_json()))


def _steps_saved(workdir: str) -> int:
    """Returns the step of the latest checkpoint, 0 if there is none."""
    paths = saved_checkpoints(os.path.join(workdir, "checkpoints"))
    return int(paths[-1].rsplit("-", 1)[1]) if paths else 0


def check_same_config(workdir: str, config: ConfigDict) -> None:
    """Raises InputError if the chief of a multi-worker run saved no config there, or a different one."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"Worker 0 has saved no config in {workdir}. With several machines, --workdir has to be on a"
            " file system that all of them share."
        )
    _compare(path, config, lambda field: field not in PATHS)


def check_model_of(workdir: str, config: ConfigDict) -> None:
    """Raises InputError if the workdir has no run, or a run of another model."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"There is no run in {workdir}. Train one first, or give --workdir, --model or --embeddings."
        )
    _compare(path, config, lambda field: _among(field, MODEL_FIELDS))


def check_path(folder: str) -> None:
    """Raises InputError if TensorFlow would not find checkpoints and models in a folder of this name."""
    if re.search(r"\[.*\]|\\", folder):
        raise InputError(
            f"TensorFlow reads [...] and \\ in the path {folder} as a pattern, and would not find the files"
            " that it writes there. Choose another folder, or change into it and give a relative path."
        )


def check_records_of(workdir: str, fingerprints: dict[str, str]) -> None:
    """Saves the fingerprints of the records; raises InputError if they differ from the saved ones."""
    path = os.path.join(workdir, "records.json")
    if not os.path.exists(path):
        files.write_json(path, fingerprints)
    elif _load(path) != fingerprints:
        raise InputError(
            f"The records of the run in {workdir} changed since it began. Choose another --workdir."
        )


def flatten(tree: dict, prefix: str = "") -> dict:
    """Flattens a tree of dicts into one dict, its keys joined by dots.

    >>> flatten({"train": {"steps": 3}})
    {'train.steps': 3}
    """
    flat = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _among(field: str, fields: tuple[str, ...]) -> bool:
    return any(field == one or (one.endswith(".") and field.startswith(one)) for one in fields)


def _compare(path: str, config: ConfigDict, matters: Callable[[str], bool]) -> None:
    before, now = flatten(_load(path)), flatten(json.loads(config.to_json()))
    if not before:
        raise InputError(f"{path} is damaged (it is empty). Choose another --workdir.")
    # Fields that were added since then had their defaults.
    before = flatten(json.loads(default.get_config(config.loss.name).to_json())) | before
    changed = [
        f"{field}: {before.get(field)!r} before, {now.get(field)!r} now"
        for field in sorted(before | now)
        if before.get(field) != now.get(field) and matters(field)
    ]
    if changed:
        raise InputError(
            f"The run in {os.path.dirname(path)} has another config ({'; '.join(changed)})."
            " Choose another --workdir, or the same config."
        )


def _load(path):
    try:
        return json_files.read(path, json_files.dict_of(json_files.anything), "Choose another --workdir.")
    except FileNotFoundError as error:
        raise InputError(f"{path} is damaged ({error}). Choose another --workdir.") from None
