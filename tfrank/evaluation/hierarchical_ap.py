"""Hierarchical AP: relevance graded by categories of classes."""

from collections.abc import Sequence

import numpy as np

from tfrank.evaluation.retrieval_ranks import Ranks


def hierarchical_ap(levels: Sequence[Ranks], *, alpha: float = 1.0) -> np.ndarray:
    """`[queries]` Hierarchical AP, 0 to 1; NaN for a query that shares no level with any other image.

        rel_j = (l_j / L)^alpha / number of images of level l_j          l_j: levels shared with the query
        H-AP = sum over i of (sum over j up to i of min(rel_i, rel_j)) / r_i, divided by the sum of rel

    (Ramzi et al., ECCV 2022, arXiv 2207.04873.) With one level it is AP.

    Args:
        levels: for each level, the coarsest first, the ranks of the images that share it with the query; all
            from the same similarities.
        alpha: how much less images of a coarse level count.

    >>> fine, coarse = Ranks(np.array([0, 1]), np.array([2])), Ranks(np.array([0, 2]), np.array([1, 2]))
    >>> hierarchical_ap([coarse, fine]), hierarchical_ap([fine])
    (array([0.83333333]), array([0.5]))
    """
    queries = zip(*(np.split(ranks.rank, ranks.start[1:-1]) for ranks in levels))
    found = np.full(len(levels[0].positives), np.nan)
    for query, (coarse, *finer) in enumerate(queries):
        if len(coarse):
            shared = np.ones(len(coarse), np.int64)
            for ranks in finer:
                shared += np.isin(coarse, ranks)
            found[query] = _hierarchical_ap(coarse, shared, len(levels), alpha)
    return found


def _hierarchical_ap(rank: np.ndarray, shared: np.ndarray, levels: int, alpha: float) -> float:
    """H-AP of a query, given the ranks of the images that share levels with it, and how many each shares."""
    level = np.arange(levels + 1)
    relevance = (level / levels) ** alpha / np.maximum(np.bincount(shared, minlength=levels + 1), 1)
    of_images = relevance[shared]
    so_far = np.cumsum(shared == level[1:, None], axis=1)
    gain = np.sum(np.minimum(relevance[1:, None], of_images) * so_far, axis=0)
    return float(np.sum(gain / rank) / np.sum(of_images))
