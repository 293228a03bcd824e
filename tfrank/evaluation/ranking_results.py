"""Metrics of embeddings, given the retrieval tasks of a protocol."""

import types
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common.checks import InputError
from tfrank.evaluation import retrieval_metrics as metrics
from tfrank.evaluation.class_means import class_means
from tfrank.evaluation.euclidean import euclidean_rows
from tfrank.evaluation.graded_metrics import graded_metrics
from tfrank.evaluation.leave_one_out import leave_one_out_ranks, small_classes
from tfrank.evaluation.metric_names import COUNTS
from tfrank.evaluation.nearest import exhaustive, searchers
from tfrank.evaluation.postprocessing.steps import Options, ranking_steps
from tfrank.evaluation.protocols import RetrievalTask
from tfrank.evaluation.relevance import relevance_by_label
from tfrank.evaluation.report.curves import precision_sums
from tfrank.evaluation.retrieval_ranks import Ranks, joined, measured, similarity_blocks

# The Ks of the revisited protocol (Radenovic et al., CVPR 2018).
GRADED_KS = (1, 5, 10)
NO_OPTIONS: Options = types.MappingProxyType({})


class RankingResult(NamedTuple):
    """The result of a ranking.

    Attributes:
        metrics: means over the queries with a positive, means over classes, and the numbers of queries.
        per_query: `[queries]` by name, NaN for queries without a positive. For several draws, their mean.
        queries: `[queries]` rows of the test set.
        task: the task that was ranked; None for several draws.
        first: `[queries]` the rank of the first positive, NaN without one; None for several draws and after
            an approximate search.
        precision: `[levels]` the mean precision at each level of recall, see `curves.precision_sums`; None
            if not asked for.
        ranks: the ranks of all positives; None if not asked for.
    """

    metrics: dict[str, float]
    per_query: dict[str, np.ndarray]
    queries: np.ndarray
    task: RetrievalTask | None
    first: np.ndarray | None = None
    precision: np.ndarray | None = None
    ranks: Ranks | None = None


def evaluate_tasks(
    embeddings: np.ndarray,
    tasks: Sequence[RetrievalTask],
    ks: Sequence[int],
    *,
    search: str = "exact",
    target_recall: float = 0.99,
    options: Options = NO_OPTIONS,
    cutoffs: bool = False,
    hierarchical: bool = False,
    with_curves: bool = False,
) -> dict[str, RankingResult]:
    """The metrics of each ranking of a protocol in which at least one query has a positive.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        tasks: see `protocols.tasks_of`.
        ks: the Ks of Recall@K and precision@K.
        search: "exact": ranks in the whole gallery. "scann": the max(ks) nearest only, so metrics that need
            more are missing; `scann_recall` is the share of the exact neighbours found for a sample of
            queries.
        target_recall: the recall to which the ScaNN index is built.
        options: options of the post-processing, see `postprocessing.steps`.
        cutoffs: whether the metrics of the k nearest are computed too, see `retrieval_metrics.per_query`;
            only by exact search.
        hierarchical: whether the metrics of graded relevance are computed of tasks with coarser levels, see
            `graded_metrics`; only by exact search.
        with_curves: whether precision at levels of recall is computed; only by exact search.

    Raises:
        InputError: no query has a positive, or the search or the post-processing does not fit the protocol.
    """
    found: dict[str, list[RankingResult]] = {}
    for task in tasks:
        if task.coarser and not hierarchical:
            task = task._replace(coarser=())
        queries, gallery = rows_of(embeddings, task.queries), rows_of(embeddings, task.gallery)
        results = evaluate_task(
            queries,
            gallery,
            task,
            ks,
            search=search,
            target_recall=target_recall,
            options=options,
            cutoffs=cutoffs,
            with_curves=with_curves,
        )
        for name, result in results.items():
            found.setdefault(name, []).append(result)
    return {name: _mean(draws) for name, draws in found.items()}


def evaluate_task(
    queries: np.ndarray,
    gallery: np.ndarray,
    task: RetrievalTask,
    ks: Sequence[int],
    *,
    search: str = "exact",
    target_recall: float = 0.99,
    options: Options = NO_OPTIONS,
    cutoffs: bool = False,
    with_curves: bool = False,
    keep_ranks: bool = False,
) -> dict[str, RankingResult]:
    """The metrics of one task, given its `[queries, dim]` and `[gallery, dim]` rows; see `evaluate_tasks`.

    With `keep_ranks` the results have the ranks of all positives, which take 8 bytes for each positive of
    each query.
    """
    task = answerable(task, options)
    if task.leave_one_out:
        queries = gallery
    for step in ranking_steps(options):
        if step.move:
            queries, gallery = step.move(queries, gallery, task.self_index, options)
    if search != "exact":
        return _evaluate_neighbors(queries, gallery, task, ks, search, target_recall, options)

    def measure(ranks):
        """What is kept of the ranks of some queries: by each ranking of the task."""
        levels = [ranks[level] for level in range(len(task.coarser))]
        return {
            name: _part(ranks[name], levels, task, ks, cutoffs, with_curves, keep_ranks)
            for name in task.relevance
        }

    parts = list(_measured(queries, gallery, task, options, measure))
    return {name: _whole([part[name] for part in parts], task) for name in task.relevance}


class _Part(NamedTuple):
    """What is kept of the ranks of some queries, see `RankingResult`; `precision` is the sum over them."""

    per_query: dict[str, np.ndarray]
    first: np.ndarray
    precision: np.ndarray | None
    ranks: Ranks | None


def _part(ranks, coarser, task, ks, cutoffs, with_curves, keep_ranks):
    if task.labels is None:
        per_query = metrics.per_query_revisited(ranks, GRADED_KS)
    else:
        per_query = metrics.per_query(ranks, ks, cutoffs=cutoffs)
    if coarser:
        per_query |= graded_metrics([*coarser, ranks])
    precision = precision_sums(ranks) if with_curves else None
    return _Part(per_query, metrics.first_rank(ranks), precision, ranks if keep_ranks else None)


def _whole(parts: list[_Part], task: RetrievalTask) -> RankingResult:
    """The result of all queries."""
    per_query = {
        name: np.concatenate([part.per_query[name] for part in parts]) for name in parts[0].per_query
    }
    first, precision, ranks = np.concatenate([part.first for part in parts]), None, None
    if parts[0].precision is not None:
        precision = sum(part.precision for part in parts) / np.count_nonzero(np.isfinite(first))
    if parts[0].ranks is not None:
        ranks = joined(part.ranks for part in parts)
    return RankingResult(_means(per_query, task), per_query, task.queries, task, first, precision, ranks)


def _measured(queries, gallery, task, options, measure):
    """Yields `measure` of the ranks of each ranking of a task, by name, and of each coarser level by number.

    All are ranked by the same similarities: two ways to compute them may round differently.
    """
    relevance = task.relevance | dict(enumerate(task.coarser))
    for step in ranking_steps(options):
        if step.similarities:
            blocks = step.similarities(queries, gallery, task.self_index, options)
            return measured(blocks, relevance, measure)
    if task.leave_one_out and queries is gallery and not task.coarser and small_classes(task.labels[0]):
        ranks = leave_one_out_ranks(gallery, task.labels[0])
        return iter([measure(dict.fromkeys(relevance, ranks))])
    return measured(similarity_blocks(queries, gallery), relevance, measure)


def answerable(task: RetrievalTask, options: Options = NO_OPTIONS) -> RetrievalTask:
    """The task, reduced to the rankings in which at least one query has a positive.

    Raises:
        InputError: there is no such ranking, or the post-processing does not fit the task.
    """
    for step in ranking_steps(options):
        if step.check_queries:
            step.check_queries(task.self_index, options)
    queries = range(len(task.queries))
    relevance = {
        name: one
        for name, one in task.relevance.items()
        if any(len(one.positives(query)) for query in queries)
    }
    if relevance:
        return task if len(relevance) == len(task.relevance) else task._replace(relevance=relevance)
    raise InputError(f"{_why_unanswerable(task)}, so there is nothing to retrieve.")


def check_search(search: str, tasks: Sequence[RetrievalTask], options: Options = NO_OPTIONS) -> None:
    """Raises InputError if tasks or post-processing need exact search and `search` is another one."""
    reranks = any(step.similarities for step in ranking_steps(options))
    if search != "exact" and (reranks or any(task.labels is None for task in tasks)):
        raise InputError(f"Graded relevance and re-ranking need exact search, not {search}.")


def _why_unanswerable(task: RetrievalTask) -> str:
    if task.labels is None:
        return "No query has an image that its graded relevance counts"
    if task.leave_one_out or not len(task.queries):
        return "No image has another of its class"
    if len(np.intersect1d(*task.labels)):
        return "No query has anything to find in the gallery but itself or junk"
    queries, gallery = map(_some, task.labels)
    return f"No query's class is in the gallery (queries have labels {queries}, the gallery {gallery})"


def leave_one_out(
    embeddings: np.ndarray,
    labels: np.ndarray,
    ks: Sequence[int],
    *,
    search: str = "exact",
    distance: str = "cosine",
) -> dict[str, float]:
    """Leave-one-out Recall@K and mAP: each image is the query once, all others are the gallery.

    Args:
        embeddings: `[images, dim]` float32; of unit norm for the cosine.
        labels: `[images]` integers.
        ks: the Ks of Recall@K; those above the number of other images are left out.
        search: see `evaluate_tasks`.
        distance: "cosine", or "euclidean" for exact search.

    Returns:
        `recall_at_<k>`, `map`, and the numbers of valid `queries` and of `queries_without_positive`, which
        are left out. With ScaNN there is `scann_recall` in place of `map`.

    >>> leave_one_out(np.eye(2, dtype=np.float32)[[0, 0, 1]], np.array([5, 5, 7]), [1, 10])
    {'recall_at_1': 1.0, 'map': 1.0, 'queries': 2, 'queries_without_positive': 1}
    """
    own = np.arange(len(labels))
    ks = [k for k in ks if k < len(labels)] or [1]
    same = distance == "cosine"
    task = RetrievalTask(
        own, own, own, {"": relevance_by_label(labels, labels, own)}, (labels, labels), leave_one_out=same
    )
    queries, gallery = (embeddings, embeddings) if same else euclidean_rows(embeddings, embeddings)
    found = evaluate_task(queries, gallery, task, ks, search=search)[""].metrics
    kept = (
        *(f"recall_at_{k}" for k in ks),
        "map",
        "queries",
        "queries_without_positive",
        f"{search}_recall",
    )
    return {name: found[name] for name in found if name in kept}


def _evaluate_neighbors(queries, gallery, task, ks, search, target_recall, options):
    """The metrics of the nearest neighbours that an approximate search finds."""
    check_search(search, [task], options)
    # Search one more neighbour, to detect ties with the k-th.
    k, recall = min(max(ks) + 1, len(gallery)), {"target_recall": target_recall}
    found = searchers.find(search, queries, gallery, k, task.self_index, **recall)
    per_query = metrics.per_query_of_neighbors(*found, *task.labels, task.self_index, ks)
    tied = np.flatnonzero(_depends_on_ties(found, *task.labels, ks))
    if len(tied):
        relevance = relevance_by_label(task.labels[0][tied], task.labels[1], task.self_index[tied])
        exactly = _exact_metrics(queries[tied], gallery, relevance, ks)
        for name, values in per_query.items():
            values[tied] = exactly[name]
    recall = exhaustive.recall_against_exact(found, queries, gallery, max(ks), task.self_index)
    means = {**_means(per_query, task), f"{search}_recall": recall}
    return {name: RankingResult(means, per_query, task.queries, task) for name in task.relevance}


def _exact_metrics(queries, gallery, relevance, ks):
    """Every metric of some queries, by exact search."""
    blocks = similarity_blocks(queries, gallery)
    parts = list(measured(blocks, {"": relevance}, lambda ranks: metrics.per_query(ranks[""], ks)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _some(labels: np.ndarray) -> str:
    """The first few distinct labels, as text."""
    values = np.unique(labels)
    return ", ".join(map(str, values[:5].tolist())) + (", ..." if len(values) > 5 else "")


def _depends_on_ties(found, labels, gallery_labels, ks):
    """Marks the few queries whose top-k list may differ from exact search.

    Their k-th and (k+1)-th results tie, with a positive among the tied, or the list is incomplete.
    """
    # Compare with tolerance: ScaNN gives equal rows slightly different scores. Missing results may be
    # positives.
    right = (gallery_labels[found.index] == labels[:, None]) | (found.index < 0)
    depends = np.zeros(len(labels), bool)
    for k in ks:
        if k < found.similarity.shape[1]:
            least = found.similarity[:, k - 1 : k]
            tied = found.similarity >= least - exhaustive.ROUNDING
            tied &= found.similarity <= least + exhaustive.ROUNDING
            depends |= tied[:, k] & np.any(tied & right, axis=1)
    return depends


def rows_of(embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """These rows of the embeddings; not a copy if they are all rows in order."""
    return embeddings if np.array_equal(rows, np.arange(len(embeddings))) else embeddings[rows]


def _means(per_query: dict[str, np.ndarray], task: RetrievalTask) -> dict[str, float]:
    """The means over queries, the means over classes if these are known, and the counts, which come last."""
    means = metrics.summarize(per_query)
    counts = {name: means.pop(name) for name in COUNTS if name in means}
    by_class = {} if task.labels is None else class_means(per_query, task.labels[0])
    return {**means, **by_class, **counts}


def _mean(draws: list[RankingResult]) -> RankingResult:
    """The mean of several draws of a ranking; a single draw is returned as it is."""
    if len(draws) == 1:
        return draws[0]
    means = {name: float(np.mean([draw.metrics[name] for draw in draws])) for name in draws[0].metrics}
    for count in ("queries", "queries_without_positive"):
        means[count] = round(means[count])
    rows = np.unique(np.concatenate([draw.queries for draw in draws]))
    total, times = {}, {}
    for draw in draws:
        place = np.searchsorted(rows, draw.queries)
        for name, values in draw.per_query.items():
            valid = np.isfinite(values)
            total.setdefault(name, np.zeros(len(rows)))[place[valid]] += values[valid]
            times.setdefault(name, np.zeros(len(rows)))[place[valid]] += 1
    with np.errstate(invalid="ignore"):
        per_query = {name: total[name] / times[name] for name in total}
    return RankingResult(means, per_query, rows, None)
