"""Metrics of embeddings, given the splits of a protocol."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.evaluation import metrics
from tfrank.evaluation.by_class import class_means
from tfrank.evaluation.leave_one_out import leave_one_out_ranks
from tfrank.evaluation.postprocessing.query_expansion import augment_database, expand_queries
from tfrank.evaluation.postprocessing.reranking import k_reciprocal_blocks
from tfrank.evaluation.protocols import Split
from tfrank.evaluation.ranks import Ranks, by_label, positive_ranks, ranks_of_blocks
from tfrank.evaluation.search import by_name, exhaustive

# The Ks of the revisited protocol (Radenovic et al., CVPR 2018).
GRADED_KS = (1, 5, 10)


class PostProcessing(NamedTuple):
    """Post-processing of embeddings before they are ranked; by default there is none.

    Attributes:
        query_expansion: number of neighbours averaged into each query; 0 disables.
        database_augmentation: number of neighbours averaged into each gallery row; 0 disables.
        alpha: exponent of the weight of a neighbour with similarity s, max(s, 0)^alpha; 0 for a plain sum.
        rerank: whether rankings are re-ranked by k-reciprocal neighbours.
    """

    query_expansion: int = 0
    database_augmentation: int = 0
    alpha: float = 2.0
    rerank: bool = False


NOTHING = PostProcessing()


class Measured(NamedTuple):
    """The result of a ranking.

    Attributes:
        metrics: means over the queries with a positive, means over classes, and the numbers of queries.
        per_query: `[queries]` by name, NaN for queries without a positive. For several draws, their mean.
        queries: `[queries]` rows of the test set.
        ranks: the ranks of the positives; None for several draws and after an approximate search.
        split: the split that was ranked; None for several draws.
    """

    metrics: dict[str, float]
    per_query: dict[str, np.ndarray]
    queries: np.ndarray
    ranks: Ranks | None
    split: Split | None


def measure(
    embeddings: np.ndarray,
    splits: Sequence[Split],
    ks: Sequence[int],
    *,
    search: str = "exact",
    target_recall: float = 0.99,
    post: PostProcessing = NOTHING,
) -> dict[str, Measured]:
    """The metrics of each ranking of a protocol in which at least one query has a positive.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        splits: see `protocols.splits_of`.
        ks: the Ks of Recall@K and precision@K.
        search: "exact": ranks in the whole gallery. "scann": the max(ks) nearest only, so metrics that need
            more are missing; `scann_recall` is the share of the exact neighbours found for a sample of
            queries.
        target_recall: the recall to which the ScaNN index is built.
        post: post-processing of the embeddings.

    Raises:
        InputError: no query has a positive, or the search or the post-processing does not fit the protocol.
    """
    found: dict[str, list[Measured]] = {}
    for split in splits:
        queries, gallery = rows_of(embeddings, split.queries), rows_of(embeddings, split.gallery)
        for name, one in measure_split(
            queries, gallery, split, ks, search=search, target_recall=target_recall, post=post
        ).items():
            found.setdefault(name, []).append(one)
    return {name: _mean(draws) for name, draws in found.items()}


def measure_split(
    queries: np.ndarray,
    gallery: np.ndarray,
    split: Split,
    ks: Sequence[int],
    *,
    search: str = "exact",
    target_recall: float = 0.99,
    post: PostProcessing = NOTHING,
) -> dict[str, Measured]:
    """The metrics of one split, as in `measure`, given its rows `[queries, dim]` and `[gallery, dim]`."""
    split = answerable(split, post)
    if post.database_augmentation:
        gallery = augment_database(gallery, k=post.database_augmentation, alpha=post.alpha)
        queries = gallery if split.leave_one_out else queries
    expanded = queries
    if post.query_expansion:
        expanded = expand_queries(
            queries, gallery, k=post.query_expansion, alpha=post.alpha, self_index=split.self_index
        )
    if search != "exact":
        return _measure_neighbors(expanded, gallery, split, ks, search, target_recall, post)
    measured = {}
    for name, ranks in _all_ranks(expanded, gallery, split, post).items():
        if split.labels is None:
            per_query = metrics.per_query_revisited(ranks, GRADED_KS)
        else:
            per_query = metrics.per_query(ranks, ks)
        measured[name] = Measured(_means(per_query, split), per_query, split.queries, ranks, split)
    return measured


def answerable(split: Split, post: PostProcessing = NOTHING) -> Split:
    """The split, reduced to the rankings in which at least one query has a positive.

    Raises:
        InputError: there is no such ranking, or the post-processing does not fit the split.
    """
    if post.rerank and post.query_expansion and np.any(split.self_index >= 0):
        raise InputError(
            "Re-ranking takes a query that is in the gallery as it is there, not expanded. Take database"
            " augmentation in place of query expansion, or one of the two."
        )
    queries = range(len(split.queries))
    truths = {
        name: truth
        for name, truth in split.truths.items()
        if any(len(truth.positives(query)) for query in queries)
    }
    if truths:
        return split if len(truths) == len(split.truths) else split._replace(truths=truths)
    raise InputError(f"{_why_unanswerable(split)}, so there is nothing to retrieve.")


def _why_unanswerable(split: Split) -> str:
    if split.labels is None:
        return "No query has an image that its graded relevance counts"
    if split.leave_one_out or not len(split.queries):
        return "No image has another of its class"
    if len(np.intersect1d(*split.labels)):
        return "No query has anything to find in the gallery but itself or junk"
    queries, gallery = map(_some, split.labels)
    return f"No query's class is in the gallery (queries have labels {queries}, the gallery {gallery})"


def leave_one_out(
    embeddings: np.ndarray, labels: np.ndarray, ks: Sequence[int], *, neighbors: str = "exact"
) -> dict[str, float]:
    """Leave-one-out Recall@K and mAP: each image is the query once, all others are the gallery.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        labels: `[images]` integers.
        ks: the Ks of Recall@K; those above the number of other images are left out.
        neighbors: the `search` of `measure`.

    Returns:
        `recall_at_<k>`, `map`, and the numbers of `queries` (valid) and `lone_queries` (left out). With ScaNN
        there is `scann_recall` in place of `map`.

    >>> leave_one_out(np.eye(2, dtype=np.float32)[[0, 0, 1]], np.array([5, 5, 7]), [1, 10])
    {'recall_at_1': 1.0, 'map': 1.0, 'queries': 2, 'lone_queries': 1}
    """
    own = np.arange(len(labels))
    ks = [k for k in ks if k < len(labels)] or [1]
    split = Split(own, own, own, {"": by_label(labels, labels, own)}, (labels, labels), leave_one_out=True)
    found = measure_split(embeddings, embeddings, split, ks, search=neighbors)[""].metrics
    kept = (*(f"recall_at_{k}" for k in ks), "map", "queries", "lone_queries", f"{neighbors}_recall")
    return {name: found[name] for name in found if name in kept}


def _all_ranks(queries, gallery, split, post):
    if post.rerank:
        blocks = k_reciprocal_blocks(queries, gallery, self_index=split.self_index)
        blocks = list(blocks) if len(split.truths) > 1 else blocks
        return {name: ranks_of_blocks(blocks, truth) for name, truth in split.truths.items()}
    if split.leave_one_out and not post.query_expansion:
        return {name: leave_one_out_ranks(gallery, split.labels[0]) for name in split.truths}
    return {name: positive_ranks(queries, gallery, truth) for name, truth in split.truths.items()}


def _measure_neighbors(queries, gallery, split, ks, search, target_recall, post):
    if split.labels is None or post.rerank:
        raise InputError(f"Graded relevance and re-ranking need exact search; {search} finds a few nearest.")
    # Search one more neighbour, to detect ties with the k-th.
    find = by_name.search(search, target_recall=target_recall)
    found = find(queries, gallery, min(max(ks) + 1, len(gallery)), split.self_index)
    per_query = metrics.per_query_of_neighbors(*found, *split.labels, split.self_index, ks)
    tied = np.flatnonzero(_hang_on_ties(found, *split.labels, ks))
    if len(tied):
        truth = by_label(split.labels[0][tied], split.labels[1], split.self_index[tied])
        exactly = metrics.per_query(positive_ranks(queries[tied], gallery, truth), ks)
        for name, values in per_query.items():
            values[tied] = exactly[name]
    recall = exhaustive.recall_against_exact(found, queries, gallery, max(ks), split.self_index)
    means = {**_means(per_query, split), f"{search}_recall": recall}
    return {name: Measured(means, per_query, split.queries, None, split) for name in split.truths}


def _some(labels: np.ndarray) -> str:
    """The first few distinct labels, as text."""
    values = np.unique(labels)
    return ", ".join(map(str, values[:5].tolist())) + (", ..." if len(values) > 5 else "")


def _hang_on_ties(found, labels, gallery_labels, ks):
    """Marks the few queries whose top-k list may differ from exact search.

    Their k-th and (k+1)-th results tie, with a positive among the tied, or the list is incomplete.
    """
    # Compare with tolerance: ScaNN gives equal rows slightly different scores. Missing results may be
    # positives.
    right = (gallery_labels[found.index] == labels[:, None]) | (found.index < 0)
    hang = np.zeros(len(labels), bool)
    for k in ks:
        if k < found.similarity.shape[1]:
            least = found.similarity[:, k - 1 : k]
            tied = found.similarity >= least - exhaustive.ROUNDING
            tied &= found.similarity <= least + exhaustive.ROUNDING
            hang |= tied[:, k] & np.any(tied & right, axis=1)
    return hang


def rows_of(embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """These rows of the embeddings; not a copy if they are all rows in order."""
    return embeddings if np.array_equal(rows, np.arange(len(embeddings))) else embeddings[rows]


def _means(per_query: dict[str, np.ndarray], split: Split) -> dict[str, float]:
    """The means over queries, the means over classes if these are known, and the counts, which come last."""
    means = metrics.summarize(per_query)
    counts = {name: means.pop(name) for name in metrics.COUNTS if name in means}
    by_class = {} if split.labels is None else class_means(per_query, split.labels[0])
    return {**means, **by_class, **counts}


def _mean(draws: list[Measured]) -> Measured:
    """The mean of several draws of a ranking; a single draw is returned as it is."""
    if len(draws) == 1:
        return draws[0]
    means = {name: float(np.mean([draw.metrics[name] for draw in draws])) for name in draws[0].metrics}
    for count in ("queries", "lone_queries"):
        means[count] = round(means[count])
    rows = np.unique(np.concatenate([draw.queries for draw in draws]))
    total, times = {}, {}
    for draw in draws:
        place = np.searchsorted(rows, draw.queries)
        for name, values in draw.per_query.items():
            counts = np.isfinite(values)
            total.setdefault(name, np.zeros(len(rows)))[place[counts]] += values[counts]
            times.setdefault(name, np.zeros(len(rows)))[place[counts]] += 1
    with np.errstate(invalid="ignore"):
        per_query = {name: total[name] / times[name] for name in total}
    return Measured(means, per_query, rows, None, None)
