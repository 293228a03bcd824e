"""Learns from held-out classes from which similarity on two images are a match, and says it in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrank.configs import sections
from tfrank.configs.sections import Evaluation
from tfrank.data import records
from tfrank.data.index import RecordIndex, select
from tfrank.evaluation.far_thresholds import far_in_words, far_thresholds
from tfrank.evaluation.thresholds import as_json, curve, from_json, in_words, threshold
from tfrank.export.saved_model import class_fingerprint
from tfrank.run.datasets import Data
from tfrank.run.embedding import embed_all
from tfrank.run.shorter import first_dimensions

# Number of training images, at most, that validation images are searched among to learn what a match is.
STRANGERS = 2000


def learned_matches(
    section: sections.Data,
    evaluation: Evaluation,
    function: Callable[[tf.Tensor], tf.Tensor],
    data: Data,
    *,
    seed: int,
    dims: Sequence[int] = (),
) -> dict[str, Any] | None:
    """Learns from held-out classes from which similarity on results are a match; None without such classes.

    The images of the held-out classes are searched for among all of them and some training images, which are
    the wrong results of many other classes. Of `dims` the same is learnt of that many first dimensions.

    Returns:
        What the model states, see `tfrank.search.matches.STATED`.
    """
    if data.validation is None:
        return None
    drawn = np.random.default_rng(seed).permutation(len(data.train))[:STRANGERS]
    strangers = select(data.train, np.sort(drawn))
    embedded = (embed_all(section, evaluation, function, part) for part in (data.validation, strangers))
    rows, labels = zip(*embedded)
    held_out = np.arange(sum(map(len, labels))) < len(labels[0])
    # Classes may have the same numbers in both.
    numbers = np.unique(np.stack([np.concatenate(labels), held_out]), axis=1, return_inverse=True)[1]

    def learnt(dim):
        some = [first_dimensions(part, dim) for part in rows] if dim else rows
        stated = {"curve": as_json(curve(np.concatenate(some), numbers, queries=held_out))}
        if evaluation.match_far:
            (found,) = far_thresholds(some[0], labels[0], fars=[evaluation.match_far])
            similarity = found.high if np.isfinite(found.high) else None
            stated |= {"far": similarity, "sentence": far_in_words(found)}
        return stated

    stated = learnt(0) | {"dims": {str(dim): learnt(dim) for dim in dims}} if dims else learnt(0)
    trained = class_fingerprints(data.train, section.features.text)
    return {"precision": evaluation.match_precision, "trained": trained, **stated}


def class_fingerprints(index: RecordIndex, text: str) -> list[str]:
    """Returns the fingerprints of the names of the classes of an index, as far as its records have names.

    Args:
        index: the records.
        text: the name of the feature that has the names.
    """
    firsts = np.unique(index.label, return_index=True)[1]
    with records.RecordReader(index) as reader:
        names = [records.class_text(reader.read([row])[0], text) for row in firsts]
    return sorted({class_fingerprint(name) for name in names if name})


def match_sentence(stated: Mapping[str, Any]) -> str:
    """Returns `learned_matches` in words, for an index of as many images as it was learnt among."""
    if "sentence" in stated:
        return stated["sentence"]
    return in_words(threshold(from_json(stated["curve"]), stated["precision"]))
