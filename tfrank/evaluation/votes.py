"""Which class an image is of, by the votes of its nearest images, and from which score on it is of any."""

import math
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.evaluation.far_thresholds import FarThreshold, far_threshold
from tfrank.evaluation.nearest.top_k import EMPTY, merge_tile, unpack
from tfrank.evaluation.retrieval_ranks import similarity_blocks
from tfrank.evaluation.thresholds import FEWEST_CLASSES, QUERIES

# Images that vote, and what divides their similarities, as in Wu et al. (arXiv:1805.01978). On photos of
# birds, objects and cars the score below tells classes that are there from others better than the greatest
# similarity, the mean of several, or their margin: benchmarks/classify.py.
NEAREST, TEMPERATURE = 10, 0.07
# Share of the images of no known class that are taken for one of a class.
FAR = 0.05


class Votes(NamedTuple):
    """Which class images are of.

    Attributes:
        label: `[queries]` the class with most votes; -1 if no image votes.
        share: `[queries]` its share of the votes, 0 to 1.
        score: `[queries]` how near the class is and how clear of others: the greatest similarity or less.
    """

    label: np.ndarray
    share: np.ndarray
    score: np.ndarray


def votes(similarity: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Votes:
    """Lets the nearest images vote on the class of each query.

    Of the k nearest images, of similarities s_i and labels y_i, class c with n_c images in all has the votes,
    share and score

        v_c     = 1/n_c sum over i with y_i = c of exp(s_i / T)
        share_c = v_c / sum over classes d of v_d
        score_c = T log(v_c) + T log(share_c)

    with T = 0.07. Each class counts the same, however many images it has: votes are the density of each class
    at the query. The first term of the score is a soft mean of the similarities to the class, and the second
    a soft margin to the other classes, 0 where there are none.

    Args:
        similarity: `[queries, k]` cosines, descending; -inf for no image.
        labels: `[queries, k]` integers.
        sizes: `[queries, k]` the number of images of each image's class that the query could have met.

    >>> found = votes(np.array([[0.8, 0.8, 0.7]]), np.array([[3, 5, 5]]), np.array([[1, 4, 4]]))
    >>> found.label.tolist(), found.share.round(2).tolist(), found.score.round(2).tolist()
    ([3], [0.76], [0.78])
    """
    similarity = np.asarray(similarity, np.float64)
    first = np.maximum(similarity[:, :1], -1)
    weight = np.exp((similarity - first) / TEMPERATURE) / sizes
    # Of each image, the votes of its class. Equal sums have equal bits, so that the nearest decides.
    of_class = np.zeros(similarity.shape)
    for place in range(similarity.shape[1]):
        of_class += weight[:, place, None] * (labels == labels[:, place, None])
    best = of_class.argmax(axis=1)[:, None]
    most = np.take_along_axis(of_class, best, axis=1)
    share = most / np.maximum(weight.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    score = first + TEMPERATURE * np.log(np.maximum(most * share, np.finfo(float).tiny))
    return Votes(np.take_along_axis(labels, best, axis=1)[:, 0], share[:, 0], score[:, 0])


class HeldOut(NamedTuple):
    """How images of labelled classes are classified, with their class and without it.

    Attributes:
        own: `[queries]` the class of each image.
        present: by all other images.
        absent: by the images of all other classes, as if its class was not there.
    """

    own: np.ndarray
    present: Votes
    absent: Votes


def held_out(
    embeddings: np.ndarray, labels: np.ndarray, *, queries: np.ndarray | None = None, seed: int = 0
) -> HeldOut:
    """Classifies some images by the others, and by the others without the image's class.

    Args:
        embeddings: `[images, dim]` float32 of unit norm.
        labels: `[images]` integers from 0.
        queries: `[images]` bool, whether to classify the image; its class must not have been trained on.
            None: all. At most 2,000 are drawn.
        seed: seed of the draw.

    Raises:
        InputError: these images are of fewer than two classes.
    """
    numbers = np.arange(len(labels)) if queries is None else np.flatnonzero(queries)
    if len(np.unique(labels[numbers])) < 2:
        raise InputError("To tell whether an image is of a class, images of two classes are needed.")
    chosen = np.sort(np.random.default_rng(seed).permutation(numbers)[:QUERIES])
    present, absent = [], []
    for start, block in similarity_blocks(embeddings[chosen], embeddings):
        rows, block = chosen[start : start + len(block)], np.array(block)
        block[np.arange(len(rows)), rows] = -np.inf
        present.append(of_similarities(block, labels, labels[rows]))
        block[labels[rows, None] == labels] = -np.inf
        absent.append(of_similarities(block, labels))
    return HeldOut(labels[chosen], *(Votes(*map(np.concatenate, zip(*parts))) for parts in (present, absent)))


def of_similarities(similarity: np.ndarray, labels: np.ndarray, own: np.ndarray | None = None) -> Votes:
    """Returns the votes of the 10 nearest images.

    Args:
        similarity: `[queries, images]` cosines of any order; -inf for images to leave out.
        labels: `[images]` integers from 0.
        own: `[queries]` the labels of queries that are images themselves, and left out; None: none is.
    """
    keys = np.full([len(similarity), min(NEAREST, len(labels))], EMPTY)
    index, nearest = unpack(merge_tile(keys, similarity, 0))
    return of_nearest(index, nearest, labels, own)


def of_nearest(
    index: np.ndarray, similarity: np.ndarray, labels: np.ndarray, own: np.ndarray | None = None
) -> Votes:
    """Returns the votes of the images that a search has found.

    Args:
        index: `[queries, k]` their numbers; -1 for none.
        similarity: `[queries, k]` their cosines, descending; -inf for none.
        labels: `[images]` integers from 0; others do not vote.
        own: as in `of_similarities`.
    """
    named = np.where(index >= 0, labels[index], -1)
    sizes = np.bincount(labels[labels >= 0])[named]
    if own is not None:
        sizes = sizes - (named == own[:, None])
    return votes(similarity, named, np.maximum(sizes, 1))


def acceptance(found: HeldOut, far: float = FAR) -> FarThreshold:
    """Returns the score from which on images are taken for one of a class.

    Of N images whose class is absent, with scores u, and as many whose class is there, with scores p,

        FAR(t) = 1/N #{u >= t},    TAR(t) = 1/N #{p >= t whose label is right}

    The threshold of a rate is the smallest of the u with FAR(t) <= rate. Its interval is that of drawing
    classes, as in `far_thresholds`: the class of an image and the one that it is taken for have
    part in an error.

    Args:
        found: from `held_out`.
        far: the rate, above 0, below 1.

    Returns:
        The threshold. From `high` on the rate can be promised for other classes; it is infinite if nothing
        can. `tar` is TAR(high).
    """
    _, ends = np.unique(np.stack([found.own, found.absent.label]), return_inverse=True)
    right = np.where(found.present.label == found.own, found.present.score, -np.inf)
    return far_threshold(right, found.absent.score, ends, len(np.unique(found.own)), far)


def in_words(found: FarThreshold) -> str:
    """Says what a threshold of `acceptance` promises.

    >>> in_words(FarThreshold(0.7, 0.65, 0.8, 0.05, 0.5, 2000, 40))
    'From score 0.800 on an image is called one of a class: so are at most 5 % of the images of other \
classes (95 % confidence, by 40 classes), and 50 % of the images of these classes, rightly.'
    """
    rate = f"at most {100 * found.far:g} % of the images of other classes"
    if math.isfinite(found.high):
        return (
            f"From score {found.high:.3f} on an image is called one of a class: so are {rate} (95 %"
            f" confidence, by {found.classes} classes), and {100 * found.tar:.0f} % of the images of these"
            " classes, rightly."
        )
    needed = f"; {FEWEST_CLASSES} are needed" if found.classes < FEWEST_CLASSES else ""
    return (
        f"No image is called one of a class: {found.classes} classes are too few to promise it of"
        f" {rate}{needed}."
    )
