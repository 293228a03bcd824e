"""From which similarity on results of an index are called a match: by its own labels, else by its model."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import json_files
from tfrank.common.checks import InputError
from tfrank.evaluation.thresholds import (
    FEWEST_CLASSES,
    MATCH,
    PERHAPS,
    Curve,
    curve,
    from_json,
    in_words,
    threshold,
)
from tfrank.export.saved_model import CONTENTS, class_fingerprint, exported_contents

# What an index measured with its labels holds until more than this share of its images has changed.
MOST_CHANGED = 0.1
_STEPS = json_files.list_of(json_files.real(-2, 2), at_least=1, at_most=10_000)
_CURVE = json_files.record(
    {
        **dict.fromkeys(("similarity", "wrong", "low", "high", "recall"), _STEPS),
        "images": json_files.whole(1),
        "classes": json_files.whole(1),
    }
)
STATED = json_files.record(
    {
        "precision": json_files.real(0, 1),
        "curve": _CURVE,
        "trained": json_files.list_of(json_files.text("[0-9a-f]{16}")),
    },
    # Of `dims`, which models to be cut short state, see `tfrank.export.joined.shorten`, nothing is read here.
    {
        "far": json_files.none_or(json_files.real(-2, 2)),
        "sentence": json_files.text(),
        "dims": json_files.dict_of(json_files.anything),
    },
)


class Matches(NamedTuple):
    """From which similarity on results are called a match, in an index of one size.

    Attributes:
        match: the similarity from which on a result is a match; infinite if nothing can be promised.
        perhaps: the one from which on it may be one.
        images: number of images of the index that this holds for.
        sentence: what is promised, in words.
        measured: what the index measured with its own labels, if it has enough.
    """

    match: float
    perhaps: float
    images: int
    sentence: str
    measured: Curve | None

    def of(self, similarity: float) -> str:
        """Returns "match", "perhaps" or "no"; "" if nothing can be promised."""
        if math.isinf(min(self.match, self.perhaps)):
            return ""
        return "match" if similarity >= self.match else "perhaps" if similarity >= self.perhaps else "no"


def matches_of(
    stated: Mapping[str, Any] | None,
    rows: np.ndarray,
    labels: Sequence[str],
    before: Matches | None = None,
    trained: Collection[str] = (),
) -> Matches:
    """Returns from which similarity on results of an index are called a match.

    An index whose labels name at least five classes that the model was not trained on searches for each of
    their images among all others. Images without a label are wrong results then. Otherwise what the model
    states counts.

    Args:
        stated: what the model states, see `STATED`; None if it states nothing.
        rows: `[rows, dim]` the embeddings of the index.
        labels: `[rows]` words; "" for none.
        before: of an earlier version of the index with the same model.
        trained: fingerprints of classes that the model was trained on, beside those that it states here.
    """
    precision = stated["precision"] if stated else MATCH
    size, old = len(rows), before.measured if before else None
    # A version of the same size has other labels, or other images.
    if old is None or not 0 < abs(size - old.images) <= MOST_CHANGED * old.images:
        old = measured_by_labels(rows, labels, {*trained, *(stated["trained"] if stated else ())})
    if stated and "far" in stated:
        far = math.inf if stated["far"] is None else stated["far"]
        return Matches(far, far, size, stated.get("sentence", ""), old)
    used = old or (from_json(stated["curve"]) if stated else None)
    if used is None:
        text = (
            "No result is called a match: the index has too few labels to find out from which similarity on"
            f" results are right. It takes images of {FEWEST_CLASSES} classes, a folder for each, that the"
            " model was not trained on."
        )
        return Matches(math.inf, math.inf, size, text, None)
    match, perhaps = (threshold(used, share, size) for share in (precision, min(precision, PERHAPS)))
    return Matches(match.high, min(match.high, perhaps.high), size, in_words(match), old)


def stated_by(model: str) -> dict[str, Any] | None:
    """Returns what a SavedModel states of matches, see `STATED`; None if nothing, as before there were sizes.

    Raises:
        InputError: it is damaged.
    """
    tree = exported_contents(model).get("matches")
    if tree is None:
        return None
    try:
        stated = STATED("matches", tree)
        if len({len(steps) for steps in stated["curve"].values() if isinstance(steps, list)}) > 1:
            raise ValueError("`matches.curve` has lists of several lengths")
    except ValueError as error:
        raise InputError(f"{model} is damaged ({CONTENTS}: {error}). Export it again.") from None
    return stated


def measured_by_labels(rows: np.ndarray, labels: Sequence[str], trained: Collection[str]) -> Curve | None:
    """Returns the curve of images of classes that were not trained on; None if there are too few."""
    classes, queries = numbered(labels, trained)
    if len(np.unique(classes[queries])) < FEWEST_CLASSES:
        return None
    try:
        return curve(rows, classes, queries=queries)
    except InputError:  # No two images are of one class.
        return None


def numbered(labels: Sequence[str], trained: Collection[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of each label in their alphabetical order, and whether it was not trained on.

    Args:
        labels: `[rows]` words; "" for none, whose number is -1 and which counts as trained on.
        trained: fingerprints of the classes that a model was trained on.

    >>> numbered(["wren", "", "robin", "wren"], [class_fingerprint("robin")])
    (array([ 1, -1,  0,  1]), array([ True, False, False,  True]))
    """
    names, numbers = np.unique(["", *labels], return_inverse=True)
    known = set(trained)
    usable = np.array([name != "" and class_fingerprint(name) not in known for name in names.tolist()])
    return numbers[1:] - 1, usable[numbers[1:]]
