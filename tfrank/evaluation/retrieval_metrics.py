"""Retrieval metrics of each query and their means, computed from the ranks of the positives.

Recall@K is the hit rate of metric learning: the share of queries with at least one image of their class
among the K nearest, the query itself left out. A query without a positive gets NaN and is left out of every
mean. Ties are ranked pessimistically, see `ranks`.

Below, r_1 < ... < r_R are the ranks of a query's R positives, counted from 1.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.retrieval_ranks import Ranks

DEFAULT_KS = (1, 10, 100)
# Positives processed together, so that intermediate results stay in the processor's cache.
BLOCK_POSITIVES = 2**18
# Names of means over queries that differ from the name of the per-query metric.
MEANS = {
    "ap": "map",
    "ap_at_r": "map_at_r",
    "hierarchical_ap": "hierarchical_map",
    "reciprocal_rank": "mrr",
    "trapezoid_ap": "trapezoid_map",
}


def main_metric(per_query: Mapping[str, np.ndarray]) -> str:
    """The name of the metric that compares queries: AP, or the hit rate if approximate search gives no AP.

    >>> main_metric({"recall_at_1": np.ones(1), "ap": np.ones(1)})
    'ap'
    """
    return next(name for name in ("ap", "trapezoid_ap", *per_query) if name in per_query)


def first_rank(ranks: Ranks) -> np.ndarray:
    """`[queries]` r_1; NaN for a query without a positive.

    >>> first_rank(Ranks(np.array([0, 2, 2]), np.array([2, 3])))
    array([ 2., nan])
    """
    return _first(ranks.rank, ranks)


def recall_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` hits: 1 if r_1 <= k, else 0; NaN for a query without a positive.

    >>> recall_at_k(Ranks(np.array([0, 2, 2]), np.array([2, 3])), 2)
    array([ 1., nan])
    """
    return _first(ranks.rank <= k, ranks)


def precision_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` share of positives among the k nearest, #{j: r_j <= k} / k; NaN without a positive.

    >>> precision_at_k(Ranks(np.array([0, 2]), np.array([2, 3])), 4)
    array([0.5])
    """
    return _sum(ranks.rank <= k, ranks) / k


def average_precision(ranks: Ranks) -> np.ndarray:
    """`[queries]` AP, the mean of the precisions at the positives: 1/R sum_j j / r_j; NaN without a positive.

    >>> average_precision(Ranks(np.array([0, 2]), np.array([1, 4])))
    array([0.75])
    """
    return _sum(_place(ranks) / ranks.rank, ranks) / ranks.positives


def average_precision_at_r(ranks: Ranks) -> np.ndarray:
    """`[queries]` AP of the R nearest: 1/R sum over r_j <= R of j / r_j; NaN without a positive.

    MAP@R is its mean: Musgrave, Belongie, Lim: A Metric Learning Reality Check, ECCV 2020 (arXiv 2003.08505),
    section 3.2.

    >>> average_precision_at_r(Ranks(np.array([0, 2]), np.array([1, 4])))
    array([0.5])
    """
    return _sum(np.where(_among_r(ranks), _place(ranks) / ranks.rank, 0), ranks) / ranks.positives


def average_precision_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` AP of the k nearest: 1 / min(k, R) sum over r_j <= k of j / r_j; NaN without a positive.

    >>> average_precision_at_k(Ranks(np.array([0, 3]), np.array([1, 4, 9])), 4)
    array([0.5])
    """
    found = np.where(ranks.rank <= k, _place(ranks) / ranks.rank, 0)
    return _sum(found, ranks) / np.minimum(ranks.positives, k)


def r_precision(ranks: Ranks) -> np.ndarray:
    """`[queries]` precision at R, #{j: r_j <= R} / R; NaN without a positive.

    >>> r_precision(Ranks(np.array([0, 2]), np.array([2, 4])))
    array([0.5])
    """
    return _sum(_among_r(ranks), ranks) / ranks.positives


def reciprocal_rank(ranks: Ranks) -> np.ndarray:
    """`[queries]` 1 / r_1; NaN without a positive.

    >>> reciprocal_rank(Ranks(np.array([0, 2]), np.array([4, 5])))
    array([0.25])
    """
    return 1 / first_rank(ranks)


def reciprocal_rank_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` 1 / r_1 if r_1 <= k, else 0; NaN without a positive.

    >>> reciprocal_rank_at_k(Ranks(np.array([0, 1, 2]), np.array([4, 5])), 4)
    array([0.25, 0.  ])
    """
    first = first_rank(ranks)
    return np.where(first > k, 0, 1 / first)


def ndcg_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` the same as `ndcg` of the k nearest; the best ranking has min(k, R) positives among them.

    >>> ndcg_at_k(Ranks(np.array([0, 1, 2]), np.array([3, 9])), 5)
    array([0.5, 0. ])
    """
    gain = np.where(ranks.rank <= k, 1 / np.log2(1 + ranks.rank), 0)
    return _normalized(gain, ranks, np.minimum(ranks.positives, k))


def ndcg(ranks: Ranks) -> np.ndarray:
    """`[queries]` sum_j 1 / log2(1 + r_j), divided by sum_j 1 / log2(1 + j); NaN without a positive.

    The normalised discounted cumulative gain of Järvelin and Kekäläinen (TOIS 2002) over the whole ranking,
    with gain 1 for a positive and 0 for a negative, in the form with log2(1 + rank).

    >>> ndcg(Ranks(np.array([0, 1]), np.array([3])))
    array([0.5])
    """
    return _normalized(1 / np.log2(1 + ranks.rank), ranks, ranks.positives)


def _normalized(gain: np.ndarray, ranks: Ranks, best: np.ndarray) -> np.ndarray:
    """`[queries]` sum of the gains, divided by that of a ranking with `best` positives in front."""
    gains = np.cumsum(1 / np.log2(2 + np.arange(best.max(initial=0))))
    # The last entry, at index -1, is for queries without a positive.
    return _sum(gain, ranks) / np.append(gains, np.nan)[best - 1]


def trapezoid_ap(ranks: Ranks) -> np.ndarray:
    """`[queries]` AP as the area of trapezoids under the precision-recall curve; NaN without a positive.

    1/R sum_j (p_j + j / r_j) / 2, where p_j is the precision just before the positive, (j - 1) / (r_j - 1),
    or 1 at rank 1. Its mean is the mAP of the revisited Oxford and Paris protocol (Radenović et al.:
    Revisiting Oxford and Paris, CVPR 2018, arXiv 1803.11285), computed as in their published code.

    >>> trapezoid_ap(Ranks(np.array([0, 2]), np.array([1, 3])))
    array([0.79166667])
    """
    place = _place(ranks)
    before = np.where(ranks.rank == 1, 1, (place - 1) / np.maximum(ranks.rank - 1, 1))
    return _sum((before + place / ranks.rank) / 2, ranks) / ranks.positives


def capped_precision_at_k(ranks: Ranks, k: int) -> np.ndarray:
    """`[queries]` #{j: r_j <= k} / min(k, r_R); NaN without a positive.

    The mP@k of the revisited Oxford and Paris protocol (arXiv 1803.11285), computed as in their published
    code: if all positives come before rank k, what follows does not lower the precision.

    >>> capped_precision_at_k(Ranks(np.array([0, 2]), np.array([1, 2])), 10)
    array([1.])
    """
    last = _of_valid_queries(ranks.rank[ranks.start[1:][ranks.positives > 0] - 1], ranks)
    return _sum(ranks.rank <= k, ranks) / np.minimum(k, last)


def mean_name(name: str) -> str:
    """The name of the mean of a per-query metric.

    >>> mean_name("ap"), mean_name("reciprocal_rank_at_10"), mean_name("recall_at_10")
    ('map', 'mrr_at_10', 'recall_at_10')
    """
    if name in MEANS:
        return MEANS[name]
    family, at, k = name.rpartition("_at_")
    return f"{MEANS.get(family, family)}{at}{k}"


def per_query(ranks: Ranks, ks: Sequence[int], *, cutoffs: bool = False) -> dict[str, np.ndarray]:
    """Every metric of every query.

    Args:
        ranks: the ranks of the queries' positives.
        ks: the Ks of Recall@K and precision@K, see `usable_ks`.
        cutoffs: whether AP, nDCG and the reciprocal rank of the k nearest are computed too: `ap_at_<k>`,
            `ndcg_at_<k>` and `reciprocal_rank_at_<k>`.

    Returns:
        `[queries]` float64 each, 0 to 1, NaN for a query without a positive: `recall_at_<k>` and
        `precision_at_<k>` for each k, `ap`, `ap_at_r`, `r_precision`, `reciprocal_rank`, `ndcg`.

    >>> found = per_query(Ranks(np.array([0, 1, 1]), np.array([2])), [1])
    >>> found["recall_at_1"], found["ap"]
    (array([ 0., nan]), array([0.5, nan]))
    """
    parts = [_metrics(block, ks) | (_cutoffs(block, ks) if cutoffs else {}) for block in _blocks(ranks)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summarize(per_query: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Means over the queries with a positive, and the number of these queries.

    Args:
        per_query: `[queries]` each, NaN for a query without a positive, as from `per_query`.

    Returns:
        `recall_at_<k>`, `precision_at_<k>`, `map`, `map_at_r`, `r_precision`, `mrr`, `ndcg`, 0 to 1, and the
        numbers of valid `queries` and of `queries_without_positive`, which are left out.
        `metric_names.METRICS` explains the metrics.

    Raises:
        InputError: no query has a positive.

    >>> summarize({"ap": np.array([0.5, 1.0, np.nan])})
    {'map': 0.75, 'queries': 2, 'queries_without_positive': 1}
    """
    valid = ~np.isnan(per_query[main_metric(per_query)])
    queries = int(np.sum(valid))
    _check_queries(queries)
    means = {mean_name(name): float(np.mean(values[valid])) for name, values in per_query.items()}
    return {**means, "queries": queries, "queries_without_positive": len(valid) - queries}


def usable_ks(ks: Sequence[int] | None, gallery_size: int) -> tuple[tuple[int, ...], str]:
    """The Ks to report, ascending and without repeats, and a note that names default Ks left out, or "".

    Args:
        ks: integers from 1 to `gallery_size`. None: those of 1, 10 and 100 that are possible.
        gallery_size: number of images that a query is ranked against.

    Raises:
        InputError: a given K is not an integer, is below 1, or exceeds the gallery size.

    >>> usable_ks([10, 1, 10], 59)
    ((1, 10), '')
    >>> usable_ks(None, 59)
    ((1, 10), 'Left out: K=100. A query is ranked against 59 images.')
    """
    most = max(gallery_size, 1)
    if ks is None:
        left_out = ", ".join(f"K={k}" for k in DEFAULT_KS if k > most)
        note = f"Left out: {left_out}. A query is ranked against {_images(gallery_size)}."
        return tuple(k for k in DEFAULT_KS if k <= most), note if left_out else ""
    ks = tuple(sorted(set(checks.sequence("ks", ks, checks.integer, at_least=1))))
    if ks[-1] > most:
        raise InputError(
            f"K={ks[-1]} is too large: a query is ranked against {_images(gallery_size)}."
            f" Choose Ks up to {most}."
        )
    return ks, ""


def per_query_revisited(ranks: Ranks, ks: Sequence[int]) -> dict[str, np.ndarray]:
    """The metrics of the revisited Oxford and Paris protocol, in the form of `per_query`.

    They are `trapezoid_ap` and `capped_precision_at_<k>`.

    >>> per_query_revisited(Ranks(np.array([0, 1]), np.array([2])), [5])
    {'trapezoid_ap': array([0.25]), 'capped_precision_at_5': array([0.5])}
    """
    precisions = {f"capped_precision_at_{k}": capped_precision_at_k(ranks, k) for k in ks}
    return {"trapezoid_ap": trapezoid_ap(ranks), **precisions}


def per_query_of_neighbors(
    index: np.ndarray,
    similarity: np.ndarray,
    query_labels: np.ndarray,
    gallery_labels: np.ndarray,
    self_index: np.ndarray,
    ks: Sequence[int],
) -> dict[str, np.ndarray]:
    """Computes both metrics, `recall_at_<k>` and `precision_at_<k>`, from neighbour lists.

    Ties are ranked pessimistically here too. If a list does not hold the whole gallery, a positive as similar
    as its last entry may tie with a negative that is not listed, so it is no hit. If the last two entries
    tie, a caller that needs the result of exact search must rank that query in the whole gallery.

    Args:
        index: `[queries, more than max(ks)]` gallery rows, nearest first, the query itself left out; -1 means
            no neighbour. A gallery with fewer rows gives fewer columns.
        similarity: `[queries, more than max(ks)]`, -inf for no neighbour.
        query_labels: `[queries]`.
        gallery_labels: `[gallery]`.
        self_index: `[queries]` the query's own gallery row, or -1.
        ks: the Ks.
    """
    labels, sizes = np.unique(gallery_labels, return_counts=True)
    place = np.minimum(np.searchsorted(labels, query_labels), len(labels) - 1)
    positives = np.where(labels[place] == query_labels, sizes[place], 0) - (self_index >= 0)
    hit = (gallery_labels[index] == query_labels[:, None]) & (index >= 0)
    cut = len(gallery_labels) - (self_index >= 0) > index.shape[1]
    hit &= ~cut[:, None] | (similarity > similarity[:, -1:])
    # Break ties pessimistically: negatives first.
    hit = np.take_along_axis(hit, np.lexsort((hit, -similarity), axis=1), axis=1).astype(np.float64)
    hit[positives <= 0] = np.nan
    recalls = {f"recall_at_{k}": hit[:, :k].max(axis=1) for k in ks}
    return recalls | {f"precision_at_{k}": hit[:, :k].sum(axis=1) / k for k in ks}


def _metrics(ranks: Ranks, ks: Sequence[int]) -> dict[str, np.ndarray]:
    return {
        **{f"recall_at_{k}": recall_at_k(ranks, k) for k in ks},
        **{f"precision_at_{k}": precision_at_k(ranks, k) for k in ks},
        "ap": average_precision(ranks),
        "ap_at_r": average_precision_at_r(ranks),
        "r_precision": r_precision(ranks),
        "reciprocal_rank": reciprocal_rank(ranks),
        "ndcg": ndcg(ranks),
    }


def _cutoffs(ranks: Ranks, ks: Sequence[int]) -> dict[str, np.ndarray]:
    metrics = {
        "ap": average_precision_at_k,
        "ndcg": ndcg_at_k,
        "reciprocal_rank": reciprocal_rank_at_k,
    }
    return {f"{name}_at_{k}": metric(ranks, k) for name, metric in metrics.items() for k in ks}


def _blocks(ranks: Ranks) -> Iterator[Ranks]:
    """The ranks in blocks of whole queries, with about BLOCK_POSITIVES positives each."""
    queries, positives = len(ranks.positives), len(ranks.rank)
    cuts = np.searchsorted(ranks.start, np.arange(BLOCK_POSITIVES, positives, BLOCK_POSITIVES))
    edges = [0, *np.unique(cuts[(cuts > 0) & (cuts < queries)]), queries]
    for first, last in itertools.pairwise(edges):
        start = ranks.start[first : last + 1]
        yield Ranks(start - start[0], ranks.rank[start[0] : start[-1]])


def _place(ranks: Ranks) -> np.ndarray:
    """The j of each r_j: the position among the positives of its query, from 1."""
    return np.arange(1, len(ranks.rank) + 1) - np.repeat(ranks.start[:-1], ranks.positives)


def _among_r(ranks: Ranks) -> np.ndarray:
    """Whether r_j <= R."""
    return ranks.rank <= np.repeat(ranks.positives, ranks.positives)


def _first(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """`[queries]` the value at the first positive; NaN without one."""
    return _of_valid_queries(values[ranks.start[:-1][ranks.positives > 0]], ranks)


def _sum(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """`[queries]` the sum of the values at the positives; NaN without one."""
    starts = ranks.start[:-1][ranks.positives > 0]
    return _of_valid_queries(np.add.reduceat(values, starts, dtype=np.float64), ranks)


def _of_valid_queries(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """`[queries]` the given values for queries with a positive, in order, and NaN for the others."""
    result = np.full(len(ranks.positives), np.nan)
    result[ranks.positives > 0] = values
    return result


def _images(count):
    return "1 image" if count == 1 else f"{count} images"


def _check_queries(count):
    if not count:
        raise InputError("No image has another of its class, so there is nothing to retrieve.")
