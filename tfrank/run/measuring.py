"""Computes the metrics that a config asks for from embeddings and their test set."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from tfrank.common.checks import InputError
from tfrank.data.index import RecordIndex
from tfrank.data.sources.image import ROLES
from tfrank.data.templates import TEMPLATES, Templates
from tfrank.evaluation import clusters, metrics
from tfrank.evaluation import verification as verifying
from tfrank.evaluation.evaluate import zero_note
from tfrank.evaluation.measure import NOTHING, Measured, PostProcessing, answerable, measure
from tfrank.evaluation.protocols import (
    PROTOCOLS,
    TEMPLATE_PAIRS,
    UNKNOWN,
    TestSet,
    average_groups,
    splits_of,
    text_of,
    usual_protocol,
)
from tfrank.evaluation.templates import (
    TEMPLATE_FARS,
    TemplatePairs,
    check_templates,
    template_verification,
)


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a test set.

    Attributes:
        rankings: measurements by ranking name; the protocol's main ranking comes first. `template_pairs`
            has metrics but no queries.
        galleries: size and hash of the gallery by ranking name, see `Question`.
        extras: metrics of the embeddings as a whole: dists@intra and dists@inter, NMI, verification.
        notes: what a reader of the metrics should know.
        embeddings: `[instances, dim]` the ranked embeddings.
        test: the test set of the instances.
        images: `[instances]` a record number of each.
    """

    rankings: dict[str, Measured]
    galleries: dict[str, dict]
    extras: dict[str, float]
    notes: tuple[str, ...]
    embeddings: np.ndarray
    test: TestSet
    images: np.ndarray

    def metrics(self) -> dict[str, dict[str, float]]:
        """Returns the metrics of each ranking; the first one includes the extras."""
        rows = {name: dict(one.metrics) for name, one in self.rankings.items()}
        next(iter(rows.values())).update(self.extras)
        return rows

    def without_embeddings(self) -> "Results":
        """Returns the same without embeddings, to save memory: raw pixels are as large as the images."""
        return dataclasses.replace(self, embeddings=np.empty([0, 0], np.float32))


class Question(NamedTuple):
    """The queries and the gallery of a ranking.

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
            "Several images have one id: the numbers of their records are added. Has another feature their"
            " names? --config.data.features.id.",
            flush=True,
        )
    templates = None
    if isinstance(relevance, Templates):
        templates = TemplatePairs(*relevance.of(np.asarray(index.id)).T, relevance.pairs)
    return TestSet(
        labels=np.asarray(index.label),
        ids=ids,
        role=np.array(ROLES)[index.role],
        group=np.asarray(index.group),
        relevance=relevance if templates is None else None,
        templates=templates,
    )


def check_measurable(config: ConfigDict, test: TestSet, *, search: str = "exact") -> None:
    """Raises InputError if the config cannot be measured on the test set. Called before training."""
    options = config.evaluation
    if search != "exact" and (options.rerank or "revisited" in _protocols(config, test)):
        raise InputError(
            f"Graded relevance and re-ranking need exact search, not {search}. Leave out --neighbors."
        )
    if TEMPLATE_PAIRS in _protocols(config, test):
        _check_template_pairs(config, test)
    test, splits = _all_splits(config, test)
    for of_protocol in splits:
        _ks(config, of_protocol)
        for split in of_protocol:
            answerable(split, _post_processing(config))
    verification = _verifies_images(config, test)
    if (options.nmi or verification) and np.any(test.labels == UNKNOWN):
        raise InputError(
            "Images of the test set have no class (label -1), by which NMI and verification are measured."
            " Set config.evaluation.nmi and config.evaluation.verification to False."
        )
    if verification:
        verifying.check_pairs(test.labels)


def questions_of(config: ConfigDict, test: TestSet) -> dict[str, Question]:
    """Returns the question of each ranking. Needs no embeddings."""
    test, splits = _all_splits(config, test)
    found = {}
    for of_protocol in splits:
        rows = np.unique(np.concatenate([split.queries for split in of_protocol]))
        ids = np.array([text_of(image) for image in test.ids[rows]])
        for name, gallery in _galleries(test, of_protocol).items():
            found[name] = Question(ids, test.labels[rows], gallery)
    return found


def measure_all(
    config: ConfigDict, embeddings: np.ndarray, test: TestSet, *, search: str = "exact"
) -> Results:
    """Measures unit-norm embeddings `[images, dim]` of a test set in every way that the config asks for.

    Random draws, such as random galleries, are the same for every config, so that runs are comparable.
    """
    options = config.evaluation
    notes = [_note_on_roles(config, test)]
    embeddings, test, images = average_groups(embeddings, test)
    post, rankings, galleries = _post_processing(config), {}, {}
    for name in _protocols(config, test):
        if name == TEMPLATE_PAIRS:
            rankings[name], galleries[name], note = _measure_template_pairs(embeddings, test)
            notes.append(note)
            continue
        splits = splits_of(test, name)
        ks, note = _ks(config, splits)
        found = measure(embeddings, splits, ks, search=search, target_recall=options.target_recall, post=post)
        searched = _galleries(test, splits)
        galleries |= {ranking: searched[ranking] for ranking in found}
        empty = searched.keys() - found.keys()
        notes += [note, *(f"Left out: {one}. No query has anything to find there." for one in sorted(empty))]
        rankings |= found
    extras = clusters.class_distances(embeddings, test.labels) if np.all(test.labels != UNKNOWN) else {}
    if options.nmi:
        extras["nmi"] = clusters.nmi(embeddings, test.labels)
    if _verifies_images(config, test):
        found = verifying.verification(embeddings, test.labels)
        notes.append(verifying.note(found))
        extras |= found
    zeros = len(embeddings) - np.count_nonzero(np.any(embeddings, axis=1))
    notes += [_common_note(test), zero_note(zeros)]
    unique = tuple(dict.fromkeys(filter(None, notes)))
    return Results(rankings, galleries, extras, unique, embeddings, test, images)


def about(config: ConfigDict, test: TestSet, *, model: str, search: str) -> dict[str, str | int]:
    """Returns facts on an evaluation for a reader of its metrics: data, model, protocols, search, options.

    Args:
        config: config of the evaluation.
        test: the test set.
        model: name of the model.
        search: "exact", "scann", or a description of the search.
    """
    options = config.evaluation
    facts = {
        "model": model,
        "images": len(test.labels),
        "classes": len(np.unique(test.labels[test.labels != UNKNOWN])),
        "protocols": "; ".join(f"{name}: {PROTOCOLS[name]}" for name in _protocols(config, test)),
        "search": f"scann, to a recall of {options.target_recall:g}" if search == "scann" else search,
    }
    weights = f" nearest, weighted by s^{options.expansion_alpha:g}"
    dims = f", to {options.whitening_dim} numbers" if options.whitening_dim else ""
    done = {
        "images' size": "their own" if options.full_size else "",
        "scales": ", ".join(f"{scale:g}" for scale in options.scales) if len(options.scales) > 1 else "",
        "whitening": f"power {options.whitening:g}{dims}" if options.whitening else "",
        "database augmentation": f"{n}{weights}" if (n := options.database_augmentation) else "",
        "query expansion": f"{n}{weights}" if (n := options.query_expansion) else "",
        "re-ranking": "k-reciprocal" if options.rerank else "",
    }
    return facts | {name: value for name, value in done.items() if value}


def _protocols(config, test):
    return tuple(config.evaluation.protocols) or (usual_protocol(test),)


def _post_processing(config):
    options = config.evaluation
    return PostProcessing(
        query_expansion=options.query_expansion,
        database_augmentation=options.database_augmentation,
        alpha=options.expansion_alpha,
        rerank=options.rerank,
    )


def _all_splits(config, test):
    """Returns the test set of the instances, and the splits of each protocol."""
    _, test, _ = average_groups(np.zeros([len(test.labels), 1], np.float32), test)
    return test, [splits_of(test, name) for name in _protocols(config, test) if name != TEMPLATE_PAIRS]


def _verifies_images(config, test):
    """Whether pairs of images are verified by class; not for templates, which have pairs of their own."""
    return config.evaluation.verification and TEMPLATE_PAIRS not in _protocols(config, test)


def _check_template_pairs(config, test):
    if test.templates is None:
        raise InputError(f"The test set has no templates ({TEMPLATES} beside its records).")
    if _post_processing(config) != NOTHING._replace(alpha=config.evaluation.expansion_alpha):
        raise InputError(
            "Pairs of templates are compared and not ranked. Set query_expansion and database_augmentation of"
            " config.evaluation to 0, and rerank to False."
        )
    check_templates(test.templates)


def _measure_template_pairs(embeddings, test):
    """Measures the pairs of templates; returns the measurement, facts on what was compared, and a note."""
    found = template_verification(embeddings, test.templates)
    nothing = np.empty([0], np.int64)
    digest = hashlib.sha256()
    for column in test.templates:
        digest.update(np.ascontiguousarray(column, np.int32))
    compared = {"images": len(test.ids), "sha256": digest.hexdigest()}
    return Measured(found, {}, nothing, None, None), compared, verifying.note(found, TEMPLATE_FARS)


def _galleries(test, splits):
    """Returns the gallery of each ranking of a protocol, as in `Question`."""
    sizes, digests = {}, {}
    for split in splits:
        images = zip(test.ids[split.gallery], test.labels[split.gallery])
        lines = "\n".join(sorted(f"{text_of(image)!r} {label}" for image, label in images))
        for name in split.truths:
            sizes[name] = len(split.gallery)
            digests.setdefault(name, hashlib.sha256()).update(lines.encode())
    return {name: {"images": sizes[name], "sha256": digests[name].hexdigest()} for name in sizes}


def _ks(config, splits):
    """Returns the Ks of the config, or the default Ks that the gallery is large enough for; and a note."""
    ranked = min(split.ranked for split in splits)
    ks = config.evaluation.recall_at or None
    return metrics.usable_ks(ks, ranked) if splits[0].labels is not None else ((1,), "")


def _note_on_roles(config, test):
    left_out = np.count_nonzero(test.role == "")
    if left_out and {"query_gallery", "revisited"} & set(_protocols(config, test)):
        return f"{left_out:,} images are neither queries nor gallery, and no part of that ranking."
    return ""


def _common_note(test):
    labels = test.labels[test.labels != UNKNOWN]
    if len(labels) and np.all(labels == labels[0]):
        return "All images are of one class: nothing can be ranked before a right one."
    return ""
