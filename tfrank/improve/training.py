"""Learns a model from groups of photos, and measures it on groups that it has not learnt."""

import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np

from tfrank.common import files
from tfrank.configs import own_images
from tfrank.configs.default import Config
from tfrank.evaluation.array_checks import unit_rows
from tfrank.evaluation.postprocessing.whitening import Whitening, load_whitening, save_whitening
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.report.bootstrap import BootstrapInterval, paired_bootstrap
from tfrank.evaluation.retrieval_metrics import per_query
from tfrank.evaluation.retrieval_ranks import positive_ranks
from tfrank.evaluation.thresholds import as_json, curve_of_parts
from tfrank.export.joined import origin_of
from tfrank.export.saved_model import class_fingerprint
from tfrank.improve.groups import Groups
from tfrank.models.embedding import HEAD_LAYER, whiten_head
from tfrank.models.weights import load_backbone_weights
from tfrank.run import experiment, frozen_backbone, settings
from tfrank.run.export import export_model
from tfrank.run.fit import choose_fit
from tfrank.search import originals
from tfrank.search.adaptation import WHITENING
from tfrank.search.learnt import GROUPS
from tfrank.search.start import FIT

# Number of parts that the groups are divided into.
PARTS = 5
# Of few photos; `whitening.SHRINKAGE` is for whole training sets. docs/image_search.md has the measurements.
SHRINKAGE = 0.8
METRICS = {"recall_at_1": "Recall@1", "ap": "mAP"}

# `[photos, dim]` embeddings of unit norm by a model, and `[photos]` which groups' photos it has not learnt.
Part = tuple[np.ndarray, np.ndarray]


class Compared(NamedTuple):
    """A metric of two models and its difference: means over photos with 95 % intervals over groups.

    Attributes:
        before, after, difference: means and intervals.
        everywhere: whether no group has less by the second model, and one has more.
    """

    before: BootstrapInterval
    after: BootstrapInterval
    difference: BootstrapInterval
    everywhere: bool


@dataclasses.dataclass(frozen=True)
class Learner:
    """The pretrained network, with a head in closed form that whitens within groups.

    Attributes:
        config: of `own_images`, with the network as it is and one view of each photo.
        model, head: the model, and its last part, from features to embeddings.
        features: `[photos, features]` of the photos.
        groups: the photos.
        origin: fingerprint of the model that the one of the index was made of.
        adapted: how the network was adapted to all photos of the index, without labels; None if it was not.
    """

    config: Config
    model: keras.Model
    head: keras.Model
    features: np.ndarray
    groups: Groups
    origin: str
    adapted: Whitening | None = None

    def learn(self, labels: np.ndarray) -> np.ndarray:
        """Learns from the photos of labels from 0 on; returns the embeddings of all, `[photos, dim]`."""
        rows = np.flatnonzero(labels >= 0)
        whiten_head(self.model, self.features[rows], labels[rows], shrinkage=SHRINKAGE, first=self.adapted)
        return unit_rows(self.head(self.features, training=False).numpy())[0]

    def parts(self, labels: np.ndarray) -> list[Part]:
        """Learns once for each part of the groups, from the labels of the others' photos alone."""
        numbers = self.groups.records.label
        held_out = [np.isin(numbers, part) for part in parts_of(len(self.groups.names))]
        return [(self.learn(np.where(mask, -1, labels)), mask) for mask in held_out]

    def before(self) -> list[Part]:
        """Returns parts by the model of the index. If it has learnt from groups, it learns anew for each."""
        if (self.groups.former >= 0).any():
            return self.parts(self.groups.former)
        return [(self.groups.embeddings, np.ones(len(self.groups.ids), bool))]

    def export(self, folder: str, after: Sequence[Part]) -> None:
        """Learns from all groups and writes a SavedModel, which states matches by the parts."""
        labels = self.groups.records.label
        self.learn(labels)
        matches = {
            "precision": self.config.evaluation.match_precision,
            "curve": as_json(curve_of_parts(after, labels)),
            "trained": sorted(map(class_fingerprint, self.groups.names)),
        }
        of_images, origin = (self.config.data, self.config.evaluation), self.origin
        export_model(*of_images, self.model, folder, matches=matches, origin=origin)
        files.replace_file(os.path.join(folder, GROUPS), self.groups.as_text().encode())
        kernel, bias = self.model.get_layer(HEAD_LAYER).get_weights()
        originals.save(folder, Whitening(np.linalg.solve(kernel.T, -bias), kernel))
        if self.adapted:
            save_whitening(os.path.join(folder, WHITENING), self.adapted)


def learner(groups: Groups, folder: str, model: str) -> Learner:
    """Returns a learner. The features of the photos are stored in a folder; if interrupted, it resumes.

    Args:
        groups: the photos.
        folder: the folder.
        model: folder of the model of the index.
    """
    config = own_images.get_config()
    config.train.frozen_until, config.train.frozen_backbone = "", True
    # As the start of an index sees them.
    config.train.feature_views, config.evaluation.image_size = 1, 0
    config = settings.resolved(config)
    config.data.fit = choose_fit(config, groups.records, usual=FIT)
    network = experiment.build_model(config)
    load_backbone_weights(network, config.model.weights)
    (features,) = frozen_backbone.stored(config, network, folder, groups.records, "train")
    head, path = frozen_backbone.split(config, network)[1], os.path.join(model, WHITENING)
    adapted = load_whitening(path) if os.path.exists(path) else None
    return Learner(config, network, head, np.array(features), groups, origin_of(model), adapted)


def parts_of(groups: int) -> list[np.ndarray]:
    """Divides the numbers of groups into parts at random, always in the same way.

    >>> sorted(len(part) for part in parts_of(12))
    [2, 2, 2, 3, 3]
    """
    return np.array_split(np.random.default_rng(0).permutation(groups), min(PARTS, groups))


def compare(before: Sequence[Part], after: Sequence[Part], labels: np.ndarray) -> dict[str, Compared]:
    """Compares two models by metric. A model that has not learnt its group searches for each photo among all.

    Args:
        before, after: the parts of each model.
        labels: `[photos]` numbers of the groups.
    """
    measured = [_measured(parts, labels) for parts in (before, after)]
    return {name: _compared(measured[0][name], measured[1][name], labels) for name in METRICS}


def _measured(parts, labels):
    """Returns the metrics of all photos."""
    found = {name: np.full(len(labels), np.nan) for name in METRICS}
    for rows, held_out in parts:
        places = np.flatnonzero(held_out)
        relevance = relevance_by_label(labels[places], labels, places)
        metrics = per_query(positive_ranks(rows[places], rows, relevance), [1])
        for name in METRICS:
            found[name][places] = metrics[name]
    return found


def _compared(before, after, labels):
    nothing, of_groups = np.zeros(len(labels)), np.bincount(labels, after - before)
    pairs = (nothing, before), (nothing, after), (before, after)
    first, second, difference = (paired_bootstrap(*pair, groups=labels) for pair in pairs)
    return Compared(first, second, difference, bool(of_groups.min() >= 0 and of_groups.max() > 0))
