"""Labels that look wrong: images that those of another class resemble more than those of their own."""

from typing import NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn.utils.extmath import randomized_svd

from tfrank.evaluation.array_checks import unit_rows
from tfrank.models.whitening import fitted_whitening

# Parts of the images; each is judged by what is learnt from the others.
FOLDS = 4
# Divides cosines to the means of classes before the softmax.
TEMPERATURE = 0.1
# Dimensions of rows that are compressed.
QUICK_DIM = 128


class Doubt(NamedTuple):
    """A label that looks wrong.

    Attributes:
        row: number of the image.
        suggestion: the class that the image resembles most.
        margin: share of the suggestion minus that of the image's label, above 0, at most 1.
    """

    row: int
    suggestion: int
    margin: float


def doubtful_labels(embeddings: np.ndarray, labels: np.ndarray, *, seed: int = 0) -> list[Doubt]:
    """Returns the labels that look wrong, the most doubtful first.

    The shares of the classes in an image are the softmax of its cosines to their means, after whitening
    within classes, all learnt from images of other parts. As in confident learning (Northcutt et al.,
    arXiv:1911.00068, equation 2), a class is likely if its share is at least its mean share in the images
    that are labelled so; a label is doubted if the likeliest class is another one.

    Args:
        embeddings: `[images, dim]`.
        labels: `[images]` integers; -1 for images without a label, which are not judged. Nor are those that
            are alone in their class.
        seed: seed of the division into parts.

    >>> rows = np.eye(3).repeat(12, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(36, 3))
    >>> labels = np.arange(3).repeat(12)
    >>> labels[3] = 1
    >>> [(doubt.row, doubt.suggestion) for doubt in doubtful_labels(rows, labels)]
    [(3, 0)]
    """
    labels = np.asarray(labels)
    classes, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    judged = np.flatnonzero((labels >= 0) & (counts[members] > 1))
    if len(np.unique(labels[judged])) < 2:
        return []
    rows, members = unit_rows(embeddings)[0][judged], members[judged]
    shares = _shares(rows, members, len(classes), seed)
    own = shares[np.arange(len(rows)), members]
    usual = np.full(len(classes), np.inf)
    for number in np.unique(members):
        usual[number] = own[members == number].mean()
    likely = np.where(shares >= usual, shares, -1.0)
    suggested = likely.argmax(axis=1)
    margins = shares[np.arange(len(rows)), suggested] - own
    doubted = np.flatnonzero((likely.max(axis=1) >= 0) & (suggested != members) & (margins > 0))
    order = doubted[np.argsort(-margins[doubted], kind="stable")]
    return [Doubt(int(judged[row]), int(classes[suggested[row]]), float(margins[row])) for row in order]


def compressed(rows: np.ndarray) -> np.ndarray:
    """Returns rows in at most `QUICK_DIM` dimensions that keep most of them, which are judged quicker.

    Args:
        rows: `[images, dim]`.
    """
    rows = np.asarray(rows)
    if rows.shape[1] <= QUICK_DIM:
        return rows
    _, _, directions = randomized_svd(rows, min(QUICK_DIM, len(rows)), random_state=0)
    return rows @ directions.T


def _shares(rows, members, classes, seed):
    """The shares of the classes in each image, `[images, classes]`; of a class in no other part 0."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    order = order[np.argsort(members[order], kind="stable")]
    # The images of a class take turns, so that each has others of it in other parts.
    part = np.empty(len(rows), int)
    part[order] = np.arange(len(rows)) % FOLDS
    shares = np.empty([len(rows), classes])
    for one in range(FOLDS):
        others, these = part != one, part == one
        kernel, bias = fitted_whitening(rows[others], members[others], dim=rows.shape[1])
        whitened, _ = unit_rows(rows @ kernel + bias)
        sums = np.zeros([classes, rows.shape[1]], np.float32)
        np.add.at(sums, members[others], whitened[others])
        known = np.bincount(members[others], minlength=classes) > 0
        logits = np.full([these.sum(), classes], -np.inf)
        logits[:, known] = whitened[these] @ unit_rows(sums[known])[0].T / TEMPERATURE
        shares[these] = softmax(logits, axis=1)
    return shares
