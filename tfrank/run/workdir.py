"""Config and record fingerprints in a run's folder: a resumed run must not silently be another one."""

import copy
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.configs.default import Config
from tfrank.configs.fields import OPEN_VALUES, Declaration, fields_of, flatten, tree
from tfrank.configs.sections import Model
from tfrank.data.index import RecordIndex
from tfrank.training.checkpoints import saved_checkpoints

# Fields of `config.train` that follow from the time there is.
LENGTH = ("feature_views", "steps")
# Values of `config.data.name` for a user's own data, whose path then names the run; endings cut off the path.
OWN_DATA = ("folder", "csv", "embeddings", "tfrecords")
ENDS = r"\.(csv|npz|parquet|zip|tgz|tar(\.\w+)?)$"


def default_workdir(config: Config) -> str:
    """Returns the default folder of a run, named after its config, the path of own data, and its loss.

    `--config.data.records=records/photos` and `--config.data.source=photos.zip` both give
    `runs/own_images_photos_pnp`.
    """
    names = [config.name, config.loss.name]
    path = config.data.records or config.data.source
    if path and config.data.name in OWN_DATA:
        names.insert(1, re.sub(ENDS, "", os.path.basename(os.path.abspath(path)), flags=re.IGNORECASE))
    return os.path.join("runs", re.sub(r"[^\w.-]+", "_", "_".join(names)))


def as_begun(workdir: str, config: Config) -> Config:
    """Returns the config with what the run in a workdir has chosen where it was left open: fit and length."""
    path = os.path.join(workdir, "config.json")
    config = copy.deepcopy(config)
    if not os.path.exists(path):
        return config
    begun = _load(path)
    _take(config.data, begun.get("data", {}), ["fit"])
    if config.train.minutes:
        _take(config.train, begun.get("train", {}), LENGTH)
    return config


def _take(section, saved, names):
    """Gives open fields of a section their saved values."""
    for name in names:
        if getattr(section, name) in OPEN_VALUES:
            setattr(section, name, saved.get(name, getattr(section, name)))


def check_config_of(workdir: str, config: Config) -> None:
    """Saves the resolved config in a new workdir, or compares it with the saved one.

    A saved config is kept until `save_config` replaces it.

    Raises:
        InputError: fields differ that a resumed run may not change; names them all.
    """
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        files.write_json(path, tree(config))
    elif steps_saved(workdir):
        _compare(path, config, lambda field: not (field.may_change or field.path))
    else:
        _compare(path, config, lambda field: field.of_records)


def save_config(workdir: str, config: Config, steps: int) -> None:
    """Saves the config of a run of `steps` steps; raises InputError if it has taken more already."""
    taken = steps_saved(workdir)
    if steps < taken:
        raise InputError(
            f"The run in {workdir} has taken {taken:,} steps already, so it cannot end at step {steps:,}."
            " Give as many steps or more, or choose another --workdir."
        )
    files.write_json(os.path.join(workdir, "config.json"), tree(config))


def steps_saved(workdir: str) -> int:
    """Returns the step of the latest checkpoint, 0 if there is none."""
    paths = saved_checkpoints(os.path.join(workdir, "checkpoints"))
    return int(paths[-1].rsplit("-", 1)[1]) if paths else 0


def check_same_config(workdir: str, config: Config) -> None:
    """Raises InputError if the chief of a multi-worker run saved no config there, or a different one."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"Worker 0 has saved no config in {workdir}. With several machines, --workdir has to be on a"
            " file system that all of them share."
        )
    _compare(path, config, lambda field: not field.path)


def check_model_of(workdir: str, model: Model) -> None:
    """Raises InputError if the workdir has no run, or a run of another model."""
    path = os.path.join(workdir, "config.json")
    if not os.path.exists(path):
        raise InputError(
            f"There is no run in {workdir}. Train one first, or give --workdir, --model or --embeddings."
        )
    saved = _load(path).get("model")
    if saved is None:
        raise InputError(f"{path} is damaged (it has no model). Choose another --workdir.")
    before = flatten({"model": tree(Model()) | saved})
    _refuse_changes(path, before, flatten({"model": tree(model)}))


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
        raise _changed(workdir, "records")


def note_on_training_records(workdir: str, train: Callable[[], RecordIndex]) -> str:
    """Returns a sentence if a run has trained on other records, or that is not known; "" if on these.

    Records that were divided anew may have classes that the run was trained on among those to test on.

    Args:
        workdir: folder of the run.
        train: opens the training records by the config.
    """
    path = os.path.join(workdir, "records.json")
    known = _load(path).get("train") if os.path.exists(path) else None
    if not known:
        return ""
    try:
        now = train().fingerprint()
    except InputError as error:
        return f"It is not known whether the run was trained on classes that it is tested on ({error})."
    if now == known:
        return ""
    return (
        "The run was trained on other records than these, so perhaps on classes that it is tested on here. If"
        " they were prepared anew, give the ones before, --config.data.records=PATH."
    )


def check_other_models_of(workdir: str, fingerprints: dict[str, str]) -> None:
    """Saves the fingerprints of other models; raises InputError if a run that has trained has others."""
    path = os.path.join(workdir, "other_models.json")
    if steps_saved(workdir) and (_load(path) if os.path.exists(path) else {}) != fingerprints:
        raise _changed(workdir, f"other models ({', '.join(fingerprints) or 'none now'})")
    if fingerprints or os.path.exists(path):
        files.write_json(path, fingerprints)


def begun_with(workdir: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the other models of a run, by their fields: their paths then, and their fingerprints.

    Both are {} where there is no run, or none that has learnt from another model.
    """
    config, others = (os.path.join(workdir, name) for name in ("config.json", "other_models.json"))
    if not (os.path.exists(config) and os.path.exists(others)):
        return {}, {}
    return _load(config).get("train", {}), _load(others)


def _changed(workdir: str, what: str) -> InputError:
    return InputError(f"The {what} of the run in {workdir} changed since it began. Choose another --workdir.")


def _compare(path: str, config: Config, matters: Callable[[Declaration], bool]) -> None:
    """Raises InputError if fields that matter differ from the saved ones."""
    before = _load(path)
    if not before:
        raise InputError(f"{path} is damaged (it is empty). Choose another --workdir.")
    # Fields that were added since then had their defaults.
    was = flatten(tree(default.get_config(config.loss.name))) | flatten(before)
    declared = {field.path: field.declaration for field in fields_of(config)}
    _refuse_changes(path, was, flatten(tree(config)), lambda name: matters(_declaration_of(name, declared)))


def _declaration_of(name: str, declared: Mapping[str, Declaration]) -> Declaration:
    """Returns the declaration of a field, or of the field that this is an entry of."""
    while name and name not in declared:
        name = name.rpartition(".")[0]
    return declared.get(name, Declaration(meaning="a field of another version"))


def _refuse_changes(
    path: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    matters: Callable[[str], bool] = lambda name: True,
) -> None:
    """Raises InputError if values that matter have changed; names them all."""
    changed = [
        f"{name}: {before.get(name)!r} before, {now.get(name)!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name) and matters(name)
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
