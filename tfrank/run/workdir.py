"""What a run's folder remembers, so that a resume cannot silently be another run."""

import json
import os
import re
from collections.abc import Callable

from ml_collections import ConfigDict

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.training.checkpoints import saved_checkpoints

# What `config.data.name` is for data of which a config's name says nothing, and what ends its path.
OWN_DATA = ("folder", "csv", "tfrecords")
ENDS = r"\.(csv|zip|tgz|tar(\.\w+)?)$"
# Where records are or come from: they are compared by content.
PATHS = ("data.source", "data.records", "data.test_records")
# What a resumed run may change: how long it goes on, what it prints, how many devices it has; paths; and what
# only evaluation reads. A dot at the end stands for all fields of a group.
CHANGEABLE = (
    *PATHS,
    "dry_run",
    "train.steps",
    "train.epochs",
    "train.log_every",
    "train.strategy",
    "evaluation.",
)
# What the records depend on; all that matters as long as no step was saved.
RECORD_FIELDS = ("data.name", "data.train", "data.test", "data.shards")
# What a checkpoint fits to.
MODEL_FIELDS = ("model.",)


def default_workdir(config: ConfigDict) -> str:
    """Where a run goes that was given no folder: named after its config, a user's own data, and its loss.

    Runs on `--config.data.records=records/photos` and on `--config.data.source=photos.zip` go to
    `runs/own_images_photos_pnp`.
    """
    names = [config.name, config.loss.name]
    path = config.data.records or config.data.source
    if path and config.data.name in OWN_DATA:
        names.insert(1, re.sub(ENDS, "", os.path.basename(os.path.abspath(path)), flags=re.IGNORECASE))
    return os.path.join("runs", re.sub(r"[^\w.-]+", "_", "_".join(names)))


def check_config_of(workdir: str, config: ConfigDict) -> None:
    """Saves the resolved config in a new workdir; one that is there must agree with it.

    The config that is there stays until `save_config`.

    Raises:
        InputError: a field differs that a resume may not change; all such fields are named.
    """
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        files.write_json(path, json.loads(config.to_json()))
    elif _steps_saved(workdir):
        _compare(path, config, lambda field: not _among(field, CHANGEABLE))
    else:
        _compare(path, config, lambda field: _among(field, RECORD_FIELDS))


def save_config(workdir: str, config: ConfigDict, steps: int) -> None:
    """Saves the config of a run that goes on to `steps` steps; InputError where it is already beyond."""
    taken = _steps_saved(workdir)
    if steps < taken:
        raise InputError(
            f"The run in {workdir} has taken {taken:,} steps already, so it cannot end at step {steps:,}."
            " Give as many steps or more, or choose another --workdir."
        )
    files.write_json(os.path.join(workdir, "config.json"), json.loads(config.to_json()))


def _steps_saved(workdir: str) -> int:
    """The step of the latest checkpoint, 0 where there is none."""
    paths = saved_checkpoints(os.path.join(workdir, "checkpoints"))
    return int(paths[-1].rsplit("-", 1)[1]) if paths else 0


def check_same_config(workdir: str, config: ConfigDict) -> None:
    """InputError where another machine of the run, the chief, has saved no config there, or another one."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"The chief has not been in {workdir}. With several machines the workdir has to be on a file"
            " system that all of them see."
        )
    _compare(path, config, lambda field: field not in PATHS)


def check_model_of(workdir: str, config: ConfigDict) -> None:
    """InputError where the workdir has no run, or one of another model."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"There is no run in {workdir}. Train one first, or give --workdir, --saved_model or"
            " --embeddings."
        )
    _compare(path, config, lambda field: _among(field, MODEL_FIELDS))


def check_path(folder: str) -> None:
    """InputError for a folder in which TensorFlow would not find its checkpoints and models again."""
    if re.search(r"\[.*\]|\\", folder):
        raise InputError(
            f"TensorFlow reads [...] and \\ in the path {folder} as a pattern, and would not find the files"
            " that it writes there. Choose another folder, or change into it and give a relative path."
        )


def check_records_of(workdir: str, fingerprints: dict[str, str]) -> None:
    """Saves the fingerprints of the records; InputError where those of before differ."""
    path = os.path.join(workdir, "records.json")
    if not os.path.exists(path):
        files.write_json(path, fingerprints)
    elif _load(path) != fingerprints:
        raise InputError(
            f"The records of the run in {workdir} changed since it began. Choose another --workdir."
        )


def flatten(tree: dict, prefix: str = "") -> dict:
    """A tree of dicts as one dict, its keys joined by dots.

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
        with open(path) as file:
            return dict(json.load(file))
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}). Choose another --workdir.") from None
