"""The composition root of evaluation: from a config and embeddings to metrics."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from ml_collections import ConfigDict

from tfrank.checks import InputError
from tfrank.data.index import RecordIndex
from tfrank.data.sources.image import ROLES
from tfrank.evaluation import clusters, metrics
from tfrank.evaluation import verification as verifying
from tfrank.evaluation.measure import Measured, PostProcessing, measure
from tfrank.evaluation.one_call import zero_note
from tfrank.evaluation.protocols import (
    PROTOCOLS,
    UNKNOWN,
    TestSet,
    average_groups,
    splits_of,
    usual_protocol,
)


@dataclasses.dataclass(frozen=True)
class Results:
    """What was measured of a test set.

    Attributes:
        rankings: by name, the first one being the protocol's.
        extras: of the embeddings as a whole: dists@intra and dists@inter, NMI, verification.
        notes: what a reader of the numbers should know.
        embeddings: `[instances, dim]` what was ranked.
        test: the test set of the instances.
        images: `[instances]` a record number of each.
    """

    rankings: dict[str, Measured]
    extras: dict[str, float]
    notes: tuple[str, ...]
    embeddings: np.ndarray
    test: TestSet
    images: np.ndarray

    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each ranking; the extras stand with the first."""
        rows = {name: dict(one.metrics) for name, one in self.rankings.items()}
        next(iter(rows.values())).update(self.extras)
        return rows


def test_set_of(index: RecordIndex, relevance: Mapping | None) -> TestSet:
    """What the records say of their images, for protocols."""
    return TestSet(
        labels=np.asarray(index.label),
        ids=np.asarray(index.id),
        role=np.array(ROLES)[index.role],
        group=np.asarray(index.group),
        relevance=relevance,
    )


def check_measurable(config: ConfigDict, test: TestSet, *, search: str = "exact") -> None:
    """InputError where what the config asks for does not fit the test set; before a model is trained."""
    if search != "exact" and (config.evaluation.rerank or "revisited" in _protocols(config, test)):
        raise InputError(f"Graded relevance and re-ranking need exact search, not {search}.")
    _, test, _ = average_groups(np.zeros([len(test.labels), 1], np.float32), test)
    for name in _protocols(config, test):
        _ks(config, splits_of(test, name, seed=config.seed))
    if (config.evaluation.nmi or config.evaluation.verification) and np.any(test.labels == UNKNOWN):
        raise InputError(
            "Images of the test set have no class (label -1), by which NMI and verification are measured."
            " Set config.evaluation.nmi and config.evaluation.verification to False."
        )


def measure_all(
    config: ConfigDict, embeddings: np.ndarray, test: TestSet, *, search: str = "exact"
) -> Results:
    """Everything that the config asks for, of unit-norm embeddings `[images, dim]` of a test set."""
    options = config.evaluation
    embeddings, test, images = average_groups(embeddings, test)
    post = PostProcessing(
        query_expansion=options.query_expansion,
        database_augmentation=options.database_augmentation,
        alpha=options.expansion_alpha,
        rerank=options.rerank,
    )
    rankings, notes = {}, []
    for name in _protocols(config, test):
        splits = splits_of(test, name, seed=config.seed)
        ks, note = _ks(config, splits)
        notes.append(note)
        rankings |= measure(
            embeddings, splits, ks, search=search, target_recall=options.target_recall, post=post
        )
    extras = clusters.class_distances(embeddings, test.labels) if np.all(test.labels != UNKNOWN) else {}
    if options.nmi:
        extras["nmi"] = clusters.nmi(embeddings, test.labels, seed=config.seed)
    if options.verification:
        found = verifying.verification(embeddings, test.labels, seed=config.seed)
        notes.append(verifying.note(found))
        extras |= found
    zeros = len(embeddings) - np.count_nonzero(np.any(embeddings, axis=1))
    notes += [_common_note(test), zero_note(zeros)]
    unique = tuple(dict.fromkeys(filter(None, notes)))
    return Results(rankings, extras, unique, embeddings, test, images)


def about(config: ConfigDict, test: TestSet, *, model: str, search: str) -> dict[str, str | int]:
    """What was measured how, for a reader of the numbers."""
    options = config.evaluation
    facts = {
        "model": model,
        "images": len(test.labels),
        "classes": len(np.unique(test.labels[test.labels != UNKNOWN])),
        "protocols": "; ".join(f"{name}: {PROTOCOLS[name]}" for name in _protocols(config, test)),
        "search": search,
    }
    done = {
        "scales": ", ".join(f"{scale:g}" for scale in options.scales) if len(options.scales) > 1 else "",
        "whitening": f"power {options.whitening:g}" if options.whitening else "",
        "database augmentation": options.database_augmentation,
        "query expansion": options.query_expansion,
        "re-ranking": "k-reciprocal" if options.rerank else "",
    }
    return facts | {name: value for name, value in done.items() if value}


def _protocols(config, test):
    return tuple(config.evaluation.protocols) or (usual_protocol(test),)


def _ks(config, splits):
    """The Ks of the config, or the usual ones as far as there are so many images to rank."""
    ranked = min(split.ranked for split in splits)
    ks = config.evaluation.recall_at or None
    return metrics.usable_ks(ks, ranked) if splits[0].labels is not None else ((1,), "")


def _common_note(test):
    labels = test.labels[test.labels != UNKNOWN]
    if len(labels) and np.all(labels == labels[0]):
        return "All images are of one class: nothing can be ranked before a right one."
    return ""
