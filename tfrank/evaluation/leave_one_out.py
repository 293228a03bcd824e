"""Leave-one-out ranks from half the similarity matrix: each image is the query, all others are the gallery.

Images are sorted by class and cut into tiles. No class is split between tiles, so
- all positives of a tile's images are in that tile, and its product with itself has all their similarities;
- two different tiles hold only negatives of each other, and one product serves the queries of both;
- every product has the same shape. If two rows are equal, the whole matrix is computed: their similarities
  could be rounded differently in different tiles.
"""

import itertools

import numpy as np

from tfrank.evaluation.parallel import EVEN, in_parallel, similarities
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.retrieval_ranks import Ranks, positive_ranks, repeated_rows
from tfrank.evaluation.threshold_counts import count_at_least, count_at_least_in_columns

# Maximum number of images in a tile. A product of this size runs at full speed and takes 16 MiB in float32.
TILE = 2048
# If an image has more positives, comparing with each of them takes longer than `positive_ranks`.
MOST_POSITIVES = 20


def small_classes(labels: np.ndarray) -> bool:
    """Whether every class is small enough to be ranked in half the time, with few positives an image.

    >>> small_classes(np.arange(100) // 5), small_classes(np.arange(100) // 50)
    (True, False)
    """
    return bool(np.unique(labels, return_counts=True)[1].max() <= MOST_POSITIVES + 1)


def leave_one_out_ranks(embeddings: np.ndarray, labels: np.ndarray) -> Ranks:
    """The ranks of each image's positives among all other images: `positive_ranks` in half the time.

    With large classes, or rows that are equal, it is `positive_ranks`.

    Args:
        embeddings: `[images, dim]` float32, unit norm, an array or a memory map.
        labels: `[images]` integers.

    >>> leave_one_out_ranks(np.eye(4, dtype=np.float32)[[0, 0, 1]], np.array([5, 5, 7]))
    Ranks(start=array([0, 1, 2, 2]), rank=array([1, 1], dtype=int32))
    """
    # Products of different tiles may round equal rows differently.
    if not small_classes(labels) or len(repeated_rows(embeddings)[0]):
        return positive_ranks(
            embeddings, embeddings, relevance_by_label(labels, labels, np.arange(len(labels)))
        )
    _, place, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    # Sort classes by size, so that few thresholds of a tile are padding.
    by_size = np.argsort(sizes, kind="stable")
    place, sizes = np.argsort(by_size)[place], sizes[by_size]
    order, cuts = np.argsort(place, kind="stable"), _cuts(sizes)
    side = -(-int(np.diff(cuts).max()) // EVEN) * EVEN

    def rows(places):
        return np.take(embeddings, np.pad(places, [0, side - len(places)], mode="edge"), axis=0)

    def product(one, other):
        return similarities(rows(one), rows(other))[: len(one), : len(other)]

    all_places = [order[start:end] for start, end in itertools.pairwise(cuts)]
    own = in_parallel(lambda places: _own_tile(place[places], product(places, places)), all_places)
    thresholds, before = map(list, zip(*own))

    def count(pair):
        i, j = pair
        similarity = product(all_places[i], all_places[j])
        of_one = count_at_least(similarity, thresholds[i])
        return i, j, of_one, count_at_least_in_columns(similarity, thresholds[j])

    pairs = itertools.combinations(range(len(all_places)), 2)
    for i, j, of_one, of_other in in_parallel(count, pairs):
        before[i] += of_one
        before[j] += of_other
    return _ranks(all_places, before, sizes[place] - 1)


def _cuts(sizes: np.ndarray) -> np.ndarray:
    """The boundaries of the tiles, given the sizes of the sorted classes."""
    cuts, ends = [0], np.cumsum(sizes)
    while cuts[-1] < ends[-1]:
        cuts.append(int(ends[np.searchsorted(ends, cuts[-1] + TILE, side="right") - 1]))
    return np.array(cuts)


def _own_tile(labels, similarity):
    """The similarities of the positives in a tile, and the number of its negatives no less than each of them.

    Both are `[images, most positives]`. Similarities ascend in each row and are padded with +inf.
    """
    first = np.searchsorted(labels, labels, side="left")
    positives = np.searchsorted(labels, labels, side="right") - first - 1
    number, me = np.arange(int(positives.max())), np.arange(len(labels))[:, None]
    column = first[:, None] + number
    column += column >= me
    found = np.take_along_axis(similarity, np.minimum(column, len(labels) - 1), axis=1)
    thresholds = np.sort(np.where(number < positives[:, None], found, np.float32(np.inf)), axis=1)
    negatives = np.where(labels[:, None] == labels, np.float32(-np.inf), similarity)
    return thresholds, count_at_least(negatives, thresholds)


def _ranks(all_places, before, positives):
    """Ranks in the order of the images, from the number of negatives before each threshold."""
    start = np.concatenate([[0], np.cumsum(positives)])
    rank = np.empty(start[-1], np.int32)
    for places, counts in zip(all_places, before):
        own, number = positives[places][:, None], np.arange(counts.shape[1])
        # Thresholds ascend, so their ranks descend.
        there = number < own
        rank[(start[places][:, None] + own - 1 - number)[there]] = (counts + own - number)[there]
    return Ranks(start, rank)
