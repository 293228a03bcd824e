"""Other models beside that of a run, such as a teacher: their embeddings of its training images and test set.

A field of `config.train` names another model: a run, a SavedModel, or an .npz of embeddings. It embeds each
training image once, as its own run loads images, without augmentation. The embeddings are stored in the
workdir as `Data.stored`, by the name of the field. A batch delivers those of its images under that name, and
the step passes them to the loss as a keyword argument; see `training.step.build_step`.

Queries of the run's model are also ranked against the other model's gallery, see `measure_others`.
"""

import dataclasses
import hashlib
import os
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs import of_run
from tfrank.configs.default import Config
from tfrank.data.index import RecordIndex
from tfrank.evaluation.compatibility import METRICS, compared, sentences
from tfrank.evaluation.protocols import TestSet, text_of
from tfrank.run import datasets, settings, trained
from tfrank.run.evaluation_results import EvaluationResults, distinct_ids, evaluate_embeddings
from tfrank.run.workdir import as_begun, begun_with, check_other_models_of

# Fields of `config.train` that name another model; what tables call it, and queries against its gallery.
NAMES = types.MappingProxyType(
    {
        "teacher": ("teacher", "queries against the teacher's gallery"),
        "compatible_with": ("old model", "queries against the old model's gallery"),
    }
)


class OtherModel(NamedTuple):
    """Another model.

    Attributes:
        embed: returns unit-norm embeddings `[images, dim]` of all records of an index, and stores them in a
            folder; those that are there already are not computed again.
        dim: dimensions of its embeddings.
        fingerprint: changes with the model.
    """

    embed: Callable[[RecordIndex, str], np.ndarray]
    dim: int
    fingerprint: str


def with_others(
    config: Config, data: datasets.Data, workdir: str
) -> tuple[datasets.Data, dict[str, OtherModel]]:
    """Returns the data with the other models' embeddings of its training images, and these models.

    Raises:
        InputError: see `open_others`, `check_dims` and `stored_embeddings`.
    """
    others = open_others(config)
    check_dims(config, others)
    # Embeddings in a file are compared with the classes of the records.
    train = dataclasses.replace(data.train, label=data.said)
    return dataclasses.replace(data, stored=stored_embeddings(others, train, workdir)), others


def open_others(config: Config) -> dict[str, OtherModel]:
    """Opens the other models that a config names, by the names of their fields.

    Raises:
        InputError: there is no such model, it is damaged, or it does not take the images of the config.
    """
    return {field: _open(path, f"config.train.{field}", config) for field, path in _paths(config).items()}


def open_those_left(config: Config, workdir: str = "") -> dict[str, OtherModel]:
    """Opens the other models as `open_others` does; of those that are left out, prints the reason.

    Left out is what cannot be opened, and what is another model than the run of `workdir` learnt from,
    unless the config names another path than the run did.
    """
    found = {}
    begun, learnt_from = begun_with(workdir)
    for field, path in _paths(config).items():
        try:
            found[field] = _open(path, f"config.train.{field}", config)
        except InputError as error:
            _say_not_measured(field, error)
            continue
        if path == begun.get(field) and learnt_from.get(field) != found[field].fingerprint:
            del found[field]
            _say_not_measured(field, f"{path} is another model now than the one that the run learnt from.")
    return found


def check_dims(config: Config, others: Mapping[str, OtherModel]) -> None:
    """Raises InputError if embeddings are compared with those of other dimensions."""
    train, dim = config.train, config.model.embedding_dim
    # Without a head the dimensions are the backbone's, and the loss refuses others.
    known = config.model.head != "none"
    teacher, old = others.get("teacher"), others.get("compatible_with")
    if teacher and known and teacher.dim != dim and train.learns_teachers_space:
        raise InputError(
            f"The embeddings of config.train.teacher have {teacher.dim} dimensions, and those of this model"
            f" {dim}. Set config.model.embedding_dim={teacher.dim}; or learn from its distances alone, by"
            " config.train.teacher_weight=0, regression_weight=0 and relational_weight=1."
        )
    if old and known and old.dim != dim:
        raise InputError(
            f"The embeddings of config.train.compatible_with have {old.dim} dimensions, and those of this"
            f" model {dim}. Set config.model.embedding_dim={old.dim}."
        )


def stored_embeddings(
    others: Mapping[str, OtherModel], train: RecordIndex, workdir: str
) -> dict[str, np.ndarray]:
    """Returns the embeddings `[images, dim]` of the training images by each model; computes what lacks.

    Raises:
        InputError: the run in the workdir began with another model, or a model has no embedding of an image.
    """
    check_other_models_of(workdir, {name: other.fingerprint for name, other in others.items()})
    folder = os.path.join(workdir, "other_models")
    return {name: other.embed(train, os.path.join(folder, name)) for name, other in others.items()}


def measure_others(
    config: Config,
    others: Mapping[str, OtherModel],
    embeddings: np.ndarray,
    index: RecordIndex,
    test: TestSet,
    folder: str,
    *,
    search: str = "exact",
) -> dict[str, EvaluationResults]:
    """Measures other models on a test set: alone, and their gallery searched by queries of the run's model.

    Args:
        config: which metrics.
        others: the models.
        embeddings: `[images, dim]` of the test set by the run's model, unit norm.
        index: its records.
        test: the test set.
        folder: folder of the evaluation, in which their embeddings are stored.
        search: "exact" or "scann".

    Returns:
        Results, without embeddings, by the name of a row in tables of models. A gallery of other dimensions
        than the queries cannot be searched, nor by whitened queries: these have no second row. An .npz
        without the images of the test set has none; the reason is printed.
    """
    found = {}
    for field, other in others.items():
        name, asymmetric = NAMES[field]
        try:
            rows = other.embed(index, os.path.join(folder, field))
        except InputError as error:
            _say_not_measured(field, error)
            continue
        found[name] = evaluate_embeddings(config.evaluation, rows, test, search=search)
        if other.dim == embeddings.shape[1] and not config.evaluation.whitening:
            found[asymmetric] = evaluate_embeddings(
                config.evaluation, embeddings, test, search=search, gallery=rows
            )
    return {name: one.without_embeddings() for name, one in found.items()}


def on_compatibility(
    measured: Mapping[str, EvaluationResults], results: EvaluationResults
) -> tuple[dict[str, str], list[str]]:
    """Says how queries of the run's model search the gallery of the one that it is to be compatible with.

    Args:
        measured: results of other models, see `measure_others`.
        results: those of the run's model.

    Returns:
        A fact for a reader, with 95 % intervals over classes; and a warning if the old queries find more
        there. Nothing if the gallery was not measured.
    """
    old, between = (measured.get(name) for name in NAMES["compatible_with"])
    if old is None or between is None or not set(METRICS.values()) <= old.main.per_query.keys():
        return {}, []
    labels = results.test.labels[results.main.queries]
    found = compared(old.main.per_query, between.main.per_query, results.main.per_query, labels)
    lines = sentences(found)
    warnings = [f"The upgrade is not compatible. {one}" for one in lines[len(METRICS) :]]
    return {"search in the old model's gallery": " ".join(lines[: len(METRICS)])}, warnings


def _paths(config):
    """The paths of the other models that a config names, by the names of their fields."""
    return {field: path for field in NAMES if (path := getattr(config.train, field))}


def _say_not_measured(field, error):
    """Prints that the other model of a field is left out, and why."""
    name, _ = NAMES[field]
    print(f"The {name} is not measured. {error}")


def _open(path: str, field: str, config: Config) -> OtherModel:
    if path.endswith(".npz"):
        return _of_embeddings(path, field)
    if os.path.isfile(os.path.join(path, "CURRENT")):
        raise InputError(f"{field} is an index: {path}. Give the run of its model.")
    if not any(os.path.isfile(os.path.join(path, file)) for file in ("saved_model.pb", "config.json")):
        raise InputError(
            f"{field} is neither a run nor a SavedModel: {path}. Give the folder of one, or an .npz of"
            " embeddings."
        )
    model = trained.open_model(*_config_of(path, config))
    if model.config.data.of_vectors != config.data.of_vectors:
        takes, has = ("vectors", "images") if model.config.data.of_vectors else ("images", "vectors")
        raise InputError(f"{field} takes {takes}, and this run has {has}: {path}. Give another model.")
    side = datasets.test_size(model.config.data, model.config.evaluation)
    one = tf.zeros([1, model.config.data.dim] if config.data.of_vectors else [1, side, side, 3])
    return OtherModel(model.embed, int(model.function(one).shape[-1]), model.fingerprint)


def _config_of(path: str, config: Config) -> tuple[Config, str, str | None]:
    """Returns the arguments of `open_model`: how the other model loads images is said by its own run."""
    saved_model = path if os.path.isfile(os.path.join(path, "saved_model.pb")) else None
    workdir = trained.run_of(saved_model) if saved_model else path
    if workdir is None:
        # A SavedModel alone loads images as this run does.
        theirs = settings.resolved(config)
    else:
        theirs = as_begun(workdir, settings.resolved(of_run.get_config(os.path.join(workdir, "config.json"))))
        theirs.data.dim = datasets.vector_dim(theirs.data, workdir)
    theirs.data.features = config.data.features
    # The strategy of this run is the only one of its process.
    theirs.train.strategy = "one_device"
    return theirs, workdir or "", saved_model


def _of_embeddings(path: str, field: str) -> OtherModel:
    """Takes stored embeddings in place of a model: those of an image are found by its id."""
    rows, test = trained.load_embeddings(path)
    places = {text_of(image): place for place, image in enumerate(test.ids)}

    def embed(index: RecordIndex, folder: str) -> np.ndarray:
        ids = [text_of(image) for image in distinct_ids(index)]
        found = np.array([places.get(image, -1) for image in ids])
        if missing := np.flatnonzero(found < 0).tolist():
            raise InputError(
                f"{field}={path} has no embedding of {len(missing):,} of {len(ids):,} images; the first is"
                f" {ids[missing[0]]!r}. Let its array `ids` have the ids of the records."
            )
        labels = test.labels[found]
        both_known = (labels != UNKNOWN) & (index.label != UNKNOWN)
        if len(other := np.flatnonzero((labels != index.label) & both_known)):
            first = int(other[0])
            raise InputError(
                f"{field}={path} has other classes for {len(other):,} of {len(ids):,} images: {ids[first]!r}"
                f" is of class {labels[first]} there and {index.label[first]} here. Give"
                " embeddings of these records."
            )
        return rows[found]

    digest = hashlib.sha256(np.ascontiguousarray(rows).data)
    digest.update("\n".join(map(text_of, test.ids)).encode())
    return OtherModel(embed, rows.shape[1], digest.hexdigest())
