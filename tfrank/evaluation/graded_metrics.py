"""Metrics of relevance graded by categories of classes: Hierarchical AP, graded nDCG, set intersection.

An image counts the more, the more levels of the categories it shares with the query: from 0 levels (a
negative) to all L, which include the class. Below, l_j are the levels that the j-th nearest image shares.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tfrank.evaluation.retrieval_ranks import Ranks


def graded_metrics(levels: Sequence[Ranks], *, alpha: float = 1.0) -> dict[str, np.ndarray]:
    """The three metrics of each query, as in Ramzi et al. (ECCV 2022, arXiv 2207.04873) and their code.

    - `hierarchical_ap`, with rel_j = (l_j / L)^alpha / number of images of level l_j, and r_i the rank:

          H-AP = sum over i of (sum over j up to i of min(rel_i, rel_j)) / r_i, divided by the sum of rel

      With one level it is AP.
    - `graded_ndcg`: sum_j (2^l_j - 1) / log2(1 + j), divided by that of the best ranking.
    - `asi`, the average set intersection: with R images that share a level, and c_l(n) of the n nearest,
      b_l(n) of the n first of the best ranking, that share just l levels,

          ASI = 1/R sum over n = 1 ... R of 1/n sum over l = 1 ... L of min(c_l(n), b_l(n))

    Args:
        levels: for each level, the coarsest first, the ranks of the images that share it with the query; all
            from the same similarities.
        alpha: how much less images of a coarse level count in H-AP.

    Returns:
        `[queries]` each, 0 to 1; NaN for a query that shares no level with any other image.

    >>> fine, coarse = Ranks(np.array([0, 1]), np.array([2])), Ranks(np.array([0, 2]), np.array([1, 2]))
    >>> {name: float(value[0].round(3)) for name, value in graded_metrics([coarse, fine]).items()}
    {'hierarchical_ap': 0.833, 'graded_ndcg': 0.797, 'asi': 0.5}
    """
    found = np.full([len(levels[0].positives), 3], np.nan)
    for query, (rank, shared) in enumerate(_shared_levels(levels)):
        if len(rank):
            found[query] = (
                _hierarchical_ap(rank, shared, len(levels), alpha),
                _graded_ndcg(rank, shared),
                _average_set_intersection(rank, shared, len(levels)),
            )
    return dict(zip(("hierarchical_ap", "graded_ndcg", "asi"), found.T))


def _shared_levels(levels: Sequence[Ranks]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each query, the ranks of the images that share a level with it, and how many each shares."""
    for coarse, *finer in zip(*(np.split(ranks.rank, ranks.start[1:-1]) for ranks in levels)):
        yield coarse, sum((np.isin(coarse, rank) for rank in finer), np.ones(len(coarse), np.int64))


def _hierarchical_ap(rank: np.ndarray, shared: np.ndarray, levels: int, alpha: float) -> float:
    level = np.arange(levels + 1)
    relevance = (level / levels) ** alpha / np.maximum(np.bincount(shared, minlength=levels + 1), 1)
    of_images = relevance[shared]
    so_far = np.cumsum(shared == level[1:, None], axis=1)
    gain = np.sum(np.minimum(relevance[1:, None], of_images) * so_far, axis=0)
    return float(np.sum(gain / rank) / np.sum(of_images))


def _graded_ndcg(rank: np.ndarray, shared: np.ndarray) -> float:
    gain = 2.0**shared - 1
    best = np.sort(gain)[::-1] / np.log2(2 + np.arange(len(gain)))
    return float(np.sum(gain / np.log2(1 + rank)) / np.sum(best))


def _average_set_intersection(rank: np.ndarray, shared: np.ndarray, levels: int) -> float:
    near = rank <= len(rank)
    found = _counts(rank[near], shared[near], len(rank), levels)
    best = _counts(1 + np.arange(len(rank)), np.sort(shared)[::-1], len(rank), levels)
    return float(np.mean(np.minimum(found, best).sum(axis=0) / (1 + np.arange(len(rank)))))


def _counts(rank, shared, depth, levels):
    """`[levels, depth]`: how many of the n first images share just so many levels, for each n."""
    there = np.zeros([levels, depth], np.int64)
    there[shared - 1, rank - 1] = 1
    return np.cumsum(there, axis=1)
