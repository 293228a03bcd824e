"""Computes the metrics that a config asks for from embeddings and their test set."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank.common.categories import categories_of_classes
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs.sections import Evaluation
from tfrank.data.index import RecordIndex
from tfrank.data.sources.image import ROLES
from tfrank.data.templates import TEMPLATES, Templates
from tfrank.evaluation import clusters
from tfrank.evaluation.array_checks import zero_note
from tfrank.evaluation.evaluators import EVALUATORS, Evaluator, switched_on
from tfrank.evaluation.postprocessing import steps
from tfrank.evaluation.protocols import (
    PROTOCOLS,
    TEMPLATE_PAIRS,
    RetrievalTask,
    TestSet,
    average_groups,
    tasks_of,
    text_of,
    usual_protocol,
)
from tfrank.evaluation.ranking_results import RankingResult, answerable, check_search, evaluate_tasks
from tfrank.evaluation.retrieval_metrics import usable_ks
from tfrank.evaluation.template_verification import (
    TEMPLATE_FARS,
    TemplatePairs,
    check_templates,
    template_verification,
)
from tfrank.evaluation.verification import note


@dataclasses.dataclass(frozen=True)
class EvaluationResults:
    """The results of a test set.

    Attributes:
        rankings: results by the name of a ranking. `template_pairs` has metrics but no queries.
        main_ranking: the name of the ranking that stands for the whole evaluation: the first one of the first
            protocol. Pictures, charts and the tables of models are of this one.
        galleries: size and hash of the gallery by the name of a ranking, see `RankingSetup`.
        extras: metrics of the embeddings as a whole: dists@intra and dists@inter, NMI, verification.
        notes: what a reader of the metrics should know.
        embeddings: `[instances, dim]` the ranked embeddings.
        test: the test set of the instances.
        images: `[instances]` a record number of each.
    """

    rankings: dict[str, RankingResult]
    main_ranking: str
    galleries: dict[str, dict]
    extras: dict[str, float]
    notes: tuple[str, ...]
    embeddings: np.ndarray
    test: TestSet
    images: np.ndarray

    @property
    def main(self) -> RankingResult:
        """The result of the main ranking."""
        return self.rankings[self.main_ranking]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Returns the metrics of each ranking; those of the main ranking include the extras."""
        rows = {name: dict(one.metrics) for name, one in self.rankings.items()}
        rows[self.main_ranking].update(self.extras)
        return rows

    def without_embeddings(self) -> "EvaluationResults":
        """Returns the same without embeddings, to save memory: raw pixels are as large as the images."""
        return dataclasses.replace(self, embeddings=np.empty([0, 0], np.float32))


class RankingSetup(NamedTuple):
    """The queries and the gallery of a ranking. Rankings with equal galleries can be compared.

    Attributes:
        ids: `[queries]` text.
        labels: `[queries]` int64.
        gallery: number of gallery `images`, and the `sha256` of their ids and labels. If galleries are drawn
            several times, the hash covers all draws.
    """

    ids: np.ndarray
    labels: np.ndarray
    gallery: dict[str, int | str]


def distinct_ids(index: RecordIndex) -> np.ndarray:
    """Returns the ids of records `[images]`; repeated ones become text with the record number appended."""
    ids = np.asarray(index.id)
    _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[place] > 1)
    if not len(repeated):
        return ids
    texts = np.array([text_of(image) for image in ids], object)
    texts[repeated] = [f"{texts[number]}#{number}" for number in repeated]
    return texts.astype(str)


def test_set_of(index: RecordIndex, relevance: Mapping | Templates | None) -> TestSet:
    """Builds the test set for protocols from what `datasets.build_test_set` returns."""
    ids = distinct_ids(index)
    if ids.dtype != np.asarray(index.id).dtype:
        print(
            "Several images have one id, so their record numbers are added. If another feature holds the"
            " names, set --config.data.features.id.",
            flush=True,
        )
    templates, category = None, np.asarray(index.category)
    if isinstance(relevance, Templates):
        template, media = relevance.of(np.asarray(index.id)).T
        templates = TemplatePairs(template, media, relevance.pairs)
    return TestSet(
        labels=np.asarray(index.label),
        ids=ids,
        role=np.array(ROLES)[index.role],
        group=np.asarray(index.group),
        grades=None if isinstance(relevance, Templates) else relevance,
        templates=templates,
        category=category if np.any(category != UNKNOWN) else None,
    )


def check_evaluation(evaluation: Evaluation, test: TestSet, *, search: str = "exact") -> None:
    """Raises InputError if the config does not fit the test set. Called before training."""
    options = evaluation.as_dict()
    if TEMPLATE_PAIRS in _protocols(evaluation, test):
        _check_template_pairs(options, test)
    test, protocols = _all_tasks(evaluation, test)
    for tasks in protocols.values():
        check_search(search, tasks, options)
        _ks(evaluation, tasks)
        for task in tasks:
            answerable(task, options)
    for evaluator in switched_on(options, _protocols(evaluation, test)):
        _check_evaluator(evaluator, test, [task for tasks in protocols.values() for task in tasks], search)


def ranking_setups(evaluation: Evaluation, test: TestSet) -> dict[str, RankingSetup]:
    """Returns the queries and the gallery of each ranking. Needs no embeddings."""
    test, protocols = _all_tasks(evaluation, test)
    found = {}
    for tasks in protocols.values():
        rows = np.unique(np.concatenate([task.queries for task in tasks]))
        ids = np.array([text_of(image) for image in test.ids[rows]])
        for name, gallery in _galleries(test, tasks).items():
            found[name] = RankingSetup(ids, test.labels[rows], gallery)
    return found


def evaluate_embeddings(
    evaluation: Evaluation,
    embeddings: np.ndarray,
    test: TestSet,
    *,
    search: str = "exact",
    loss: Any = None,
    gallery: np.ndarray | None = None,
) -> EvaluationResults:
    """Computes all metrics that a config asks for, of unit-norm embeddings `[images, dim]` of a test set.

    Random draws, such as random galleries, are the same for every config, so that runs are comparable.

    Args:
        evaluation: the fields of `config.evaluation`.
        embeddings: the embeddings.
        test: their test set.
        search: "exact" or "scann".
        loss: the fields of `config.loss` of the model, for a note on its distance; None if it is unknown.
        gallery: `[images, dim]` the embeddings of the same test set by another model, which the queries are
            ranked against; None: `embeddings`. Measures of the embeddings as a whole are of `embeddings`.
    """
    notes = [_note_on_roles(evaluation, test), _note_on_distance(loss)]
    others = None if gallery is None else average_groups(gallery, test)[0]
    embeddings, test, images = average_groups(embeddings, test)
    ranked = embeddings if others is None else np.concatenate([embeddings, others])
    options, protocols = evaluation.as_dict(), _protocols(evaluation, test)
    evaluators = switched_on(options, protocols)
    rankings, galleries = {}, {}
    for name in protocols:
        if name == TEMPLATE_PAIRS:
            rankings[name], galleries[name], note_on_pairs = _evaluate_template_pairs(embeddings, test)
            notes.append(note_on_pairs)
            continue
        tasks = tasks_of(test, name)
        searched = _galleries(test, tasks)
        ks, note_on_ks = _ks(evaluation, tasks)
        found = evaluate_tasks(
            ranked,
            tasks if others is None else [_of_second(task, len(embeddings)) for task in tasks],
            ks,
            search=search,
            target_recall=evaluation.target_recall,
            options=options,
            with_curves=True,
            **{one.field: True for one in evaluators if not one.measure},
        )
        galleries |= {ranking: searched[ranking] for ranking in found}
        empty = sorted(searched.keys() - found.keys())
        notes += [note_on_ks, *(f"Left out: {one}. None of its queries has a positive." for one in empty)]
        rankings |= found
    extras = clusters.class_distances(embeddings, test.labels) if np.all(test.labels != UNKNOWN) else {}
    for one in evaluators:
        if one.measure:
            measured = one.measure(embeddings, test.labels)
            notes.append(one.note(measured))
            extras |= measured
    zeros = len(embeddings) - int(np.count_nonzero(np.any(embeddings, axis=1)))
    notes += [_note_on_one_class(test), zero_note(zeros)]
    unique = tuple(dict.fromkeys(filter(None, notes)))
    main, *_ = rankings
    return EvaluationResults(rankings, main, galleries, extras, unique, embeddings, test, images)


def _of_second(task: RetrievalTask, images: int) -> RetrievalTask:
    """Returns the task with the gallery among the second `images` rows of twice as many."""
    return task._replace(gallery=task.gallery + images, leave_one_out=False)


def about(evaluation: Evaluation, test: TestSet, *, model: str, search: str) -> dict[str, str | int]:
    """Returns facts on an evaluation for a reader of its metrics: data, model, protocols, search, options.

    Args:
        evaluation: the fields of `config.evaluation`.
        test: the test set.
        model: name of the model.
        search: "exact", "scann", or a description of the search.
    """
    facts: dict[str, str | int] = {
        "model": model,
        "images": len(test.labels),
        "classes": len(np.unique(test.labels[test.labels != UNKNOWN])),
        "protocols": "; ".join(f"{name}: {PROTOCOLS[name]}" for name in _protocols(evaluation, test)),
        "search": f"scann, to a recall of {evaluation.target_recall:g}" if search == "scann" else search,
    }
    side = evaluation.image_size
    size = "their own" if evaluation.full_size else f"{side} x {side} pixels" if side else ""
    return facts | ({"images' size": size} if size else {}) | steps.described(evaluation.as_dict())


def _protocols(evaluation: Evaluation, test: TestSet) -> tuple[str, ...]:
    return evaluation.protocols or (usual_protocol(test),)


def _all_tasks(evaluation: Evaluation, test: TestSet) -> tuple[TestSet, dict[str, list[RetrievalTask]]]:
    """Returns the test set of the instances, and the tasks of each protocol that ranks."""
    _, test, _ = average_groups(np.zeros([len(test.labels), 1], np.float32), test)
    ranked = [name for name in _protocols(evaluation, test) if name != TEMPLATE_PAIRS]
    return test, {name: tasks_of(test, name) for name in ranked}


def _check_template_pairs(options, test):
    if test.templates is None:
        raise InputError(f"The test set has no templates ({TEMPLATES} beside its records).")
    if found := steps.ranking_steps(options):
        fields = [f"config.evaluation.{step.options[0]}={step.off}" for step in found]
        raise InputError(
            "Pairs of templates are compared and not ranked, so there is nothing to post-process. Set"
            f" {' and '.join(fields)}."
        )
    check_templates(test.templates)


def _check_evaluator(evaluator: Evaluator, test: TestSet, tasks: list[RetrievalTask], search: str) -> None:
    """Raises InputError if the test set or the search lacks what an evaluator needs."""
    field = f"config.evaluation.{evaluator.field}"
    if evaluator.categories and any(task.labels is None or not task.coarser for task in tasks):
        raise InputError(
            f"{evaluator.name} needs the category of every query, but the test set has queries without one."
            f" Prepare records with categories, or leave out {field}."
        )
    if evaluator.categories and test.category is not None:
        known = (test.labels != UNKNOWN) & (test.category != UNKNOWN)
        categories_of_classes(test.labels[known], test.category[known, None])
    if evaluator.exact and search != "exact":
        raise InputError(
            f"{field} needs exact search, not {search}. Leave out --search, or set the field to False."
        )
    if evaluator.classes and np.any(test.labels == UNKNOWN):
        needing = [one for one in EVALUATORS if one.classes]
        fields = ", ".join(f"config.evaluation.{one.field}" for one in needing)
        raise InputError(
            "Images of the test set have no class (label -1), but these need classes:"
            f" {', '.join(one.name for one in needing)}. Set {fields} to False."
        )
    evaluator.check(test.labels)


def _evaluate_template_pairs(embeddings, test):
    """Verifies the pairs of templates; returns the result, what was compared, and a note."""
    found = template_verification(embeddings, test.templates)
    nothing = np.empty([0], np.int64)
    digest = hashlib.sha256()
    for column in test.templates:
        digest.update(np.ascontiguousarray(column, np.int32))
    compared = {"images": len(test.ids), "sha256": digest.hexdigest()}
    return RankingResult(found, {}, nothing, None), compared, note(found, TEMPLATE_FARS)


def _galleries(test, tasks):
    """Returns the gallery of each ranking of a protocol, as in `RankingSetup`."""
    sizes, digests = {}, {}
    for task in tasks:
        images = zip(test.ids[task.gallery], test.labels[task.gallery])
        lines = "\n".join(sorted(f"{text_of(image)!r} {label}" for image, label in images))
        for name in task.relevance:
            sizes[name] = len(task.gallery)
            digests.setdefault(name, hashlib.sha256()).update(lines.encode())
    return {name: {"images": sizes[name], "sha256": digests[name].hexdigest()} for name in sizes}


def _ks(evaluation: Evaluation, tasks: list[RetrievalTask]) -> tuple[Sequence[int], str]:
    """Returns the Ks of the config, or the default Ks that the gallery is large enough for; and a note."""
    ranked = min(task.ranked for task in tasks)
    ks = evaluation.recall_at or None
    return usable_ks(ks, ranked) if tasks[0].labels is not None else ((1,), "")


def _note_on_roles(evaluation: Evaluation, test: TestSet) -> str:
    left_out = np.count_nonzero(test.role == "")
    if left_out and {"query_gallery", "revisited"} & set(_protocols(evaluation, test)):
        return f"{left_out:,} images are neither queries nor gallery. They are left out of the ranking."
    return ""


def _note_on_distance(loss):
    if getattr(loss, "normalize", True):
        return ""
    return (
        f"Ranked by the cosine, although the loss {loss.name} compares embeddings that are not"
        " normalised (config.loss.normalize=False)."
    )


def _note_on_one_class(test):
    labels = test.labels[test.labels != UNKNOWN]
    if len(labels) and np.all(labels == labels[0]):
        return "All images are of one class: no ranking can be wrong."
    return ""
