"""Is an image of one of the classes of an index, and of which? By its nearest images and their labels."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.evaluation.thresholds import FEWEST_CLASSES
from tfrank.evaluation.votes import HeldOut, acceptance, held_out, in_words, of_nearest
from tfrank.search.matches import numbered


class Classified(NamedTuple):
    """Which class of an index an image is of.

    Attributes:
        label: the class; None if no class is near enough, or if nothing can be promised.
        nearest: the class with most votes, near enough or not.
        share: its share of the votes of the nearest images, 0 to 1.
        score: how near it is and how clear of other classes, see `tfrank.evaluation.votes.votes`.
        threshold: the score from which on an image is of a class; infinite if nothing can be promised.
        promise: how many images of other classes are called one of a class, or why that is not known.
    """

    label: str | None
    nearest: str
    share: float
    score: float
    threshold: float
    promise: str


class Classes(NamedTuple):
    """The classes of an index.

    Attributes:
        names: the labels, in their order.
        numbers: `[rows]` the number of each row's label; -1 for none.
        labelled: the rows that have a label.
        untrained: number of the classes that the model was not trained on.
        measured: how images of these are classified with their class and without it; None if they are fewer
            than five.
    """

    names: list[str]
    numbers: np.ndarray
    labelled: np.ndarray
    untrained: int
    measured: HeldOut | None

    def threshold(self, far: float) -> tuple[float, str]:
        """Returns the score from which on an image is of a class, and what it promises."""
        if self.measured is None:
            return math.inf, (
                f"No image is called one of a class: the index has {self.untrained:,} classes that the"
                f" model was not trained on; {FEWEST_CLASSES} are needed to learn from which score on."
            )
        found = acceptance(self.measured, far)
        return found.high, in_words(found)

    def of(
        self, found: Iterable[tuple[np.ndarray, np.ndarray]], own: np.ndarray, far: float
    ) -> list[Classified]:
        """Returns the class of each query.

        Args:
            found: for each query its nearest labelled rows and their similarities.
            own: `[queries]` the row of a query that is an image of the index, and not found; or -1.
            far: share of the images of other classes that may be called one of a class.
        """
        least, promise = self.threshold(far)
        results = []
        for (rows, similarity), label in zip(found, np.where(own >= 0, self.numbers[own], -2)):
            voted = of_nearest(rows[None], similarity[None], self.numbers, np.array([label]))
            nearest, share, score = (part[0].item() for part in voted)
            name = self.names[nearest]
            results.append(Classified(name if score >= least else None, name, share, score, least, promise))
        return results


def classes_of(rows: np.ndarray, labels: Sequence[str], trained: Collection[str]) -> Classes:
    """Returns the classes of an index.

    Args:
        rows: `[rows, dim]` embeddings.
        labels: `[rows]` words; "" for none.
        trained: fingerprints of the classes that the model was trained on.

    Raises:
        InputError: fewer than two images have a label.
    """
    numbers, queries = numbered(labels, trained)
    labelled = np.flatnonzero(numbers >= 0)
    if len(labelled) < 2:
        raise InputError(
            "The index has no two images with a label to classify by. Put the images of each class in a"
            " folder."
        )
    untrained, measured = len(np.unique(numbers[queries])), None
    if untrained >= FEWEST_CLASSES:
        measured = held_out(rows[labelled], numbers[labelled], queries=queries[labelled])
    return Classes(sorted({*labels} - {""}), numbers, labelled, untrained, measured)
