"""Evaluation of plain arrays in one call, with all retrieval metrics."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks, ignore_labels
from tfrank.common.categories import categories_of_classes, checked_categories
from tfrank.common.checks import InputError
from tfrank.evaluation.array_checks import (
    BLOCK,
    check_finite,
    check_unique,
    checked_embeddings,
    unit_rows,
    zero_note,
)
from tfrank.evaluation.euclidean import euclidean_rows
from tfrank.evaluation.nearest.searchers import SEARCHES, usable
from tfrank.evaluation.protocols import RetrievalTask, text_of
from tfrank.evaluation.ranking_results import answerable, evaluate_task
from tfrank.evaluation.relevance import Relevance, relevance_by_label, relevance_of_categories
from tfrank.evaluation.report import terminal
from tfrank.evaluation.retrieval_metrics import usable_ks
from tfrank.evaluation.retrieval_ranks import Ranks

DISTANCES = ("cosine", "euclidean")
BY_EUCLIDEAN_DISTANCE = "Ranked by the Euclidean distance of the embeddings, which are not normalised."
ITSELF = (
    "Gallery and queries have the same embeddings, so each query finds itself first. Leave out the gallery,"
    " or give ids and gallery_ids."
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`. Printing it shows a table with the definition of each metric.

    Attributes:
        metrics: means over the queries with a positive, 0 to 1; the number of these `queries`, and the number
            of `queries_without_positive`, which have no positive and are left out.
        per_query: the same metrics, `[queries]` each; NaN for a query without a positive.
        ranks: the ranks of the positives of each query, from 1; None unless `keep_ranks` was given.
        notes: remarks for the reader of the metrics.
    """

    metrics: dict[str, float]
    per_query: dict[str, np.ndarray]
    ranks: Ranks | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([terminal.listing({"": self.metrics}), *self.notes])


def evaluate(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    gallery_embeddings: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    ids: Sequence | np.ndarray | None = None,
    gallery_ids: Sequence | np.ndarray | None = None,
    junk: np.ndarray | None = None,
    ks: Sequence[int] | None = None,
    search: str = "exact",
    cutoffs: bool = False,
    categories: np.ndarray | None = None,
    gallery_categories: np.ndarray | None = None,
    distance: str = "cosine",
    keep_ranks: bool = False,
    ignore_label: int | None = None,
) -> Evaluation:
    """Recall@K and precision@K for any K, mAP, mAP@R, R-precision, MRR and nDCG, exactly.

    Without a gallery, each image is the query once and all others are the gallery. A negative as similar as a
    positive is ranked before it. Queries without a positive are counted, and left out of every mean.

    Memory holds the embeddings; a float32 copy if they are of another type or norm, and another of a gallery
    of up to 2 GiB; the metrics of each query; and blocks of similarities, about 0.5 GiB in all, or 4 GiB for
    a gallery above 2 GiB. It depends neither on queries x gallery nor on the number of positives.

    Args:
        embeddings: `[queries, dim]` of any float dtype and norm, an array or a memory map.
        labels: `[queries]` or `[queries, 1]` integers.
        gallery_embeddings, gallery_labels: the same for the gallery, if it differs from the queries.
        ids: `[queries]` unique names. With `gallery_ids`, a gallery row with the query's id is left out of
            the query's ranking. Without them, ids only appear in messages and no gallery row is left out.
        gallery_ids: `[gallery]` unique names; only with `ids`.
        junk: `[queries, gallery]` bool: rows that are neither right nor wrong for a query.
        ks: the Ks, none above the gallery size. None: those of 1, 10 and 100 that are possible.
        search: "exact", or "scann" for large galleries. "scann" gives Recall@K and precision@K only, and
            `scann_recall`, the share of the exact neighbours that it found. If ScaNN cannot run, search is
            exact and a note says so.
        cutoffs: whether mAP@K, nDCG@K and MRR@K are measured too; only with exact search.
        categories: `[queries]` integers, the category of each label, or `[queries, levels]`, its coarser and
            coarser categories. With it, `hierarchical_map`, `graded_ndcg` and `asi` are measured too, see
            `graded_metrics.graded_metrics`; only with exact search.
        gallery_categories: the same for the gallery.
        distance: "cosine"; or "euclidean", between the embeddings as they are, for those of a loss that does
            not normalise them, such as lifted structure; only with exact search, see
            `euclidean.euclidean_rows`.
        keep_ranks: whether the result has the ranks of all positives; only with exact search. They take 8
            bytes for each positive of each query, which is much if few classes are large: 1.6 GB for 20,000
            images of two classes.
        ignore_label: label of images without a class, such as -1: they are neither queries nor in the
            gallery. `per_query` has NaN for them; `ranks` are those of the others. None: every label is a
            class.

    Raises:
        InputError: an embedding is not finite (named by its id), shapes or labels do not match, an id is
            repeated, `gallery_ids` are given without `ids`, or there is nothing to retrieve.

    >>> found = evaluate(np.float32([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), np.array([5, 5, 7, 7]), ks=[1])
    >>> found.metrics["recall_at_1"], found.metrics["map"], found.metrics["queries"]
    (1.0, 1.0, 4)
    """
    checks.one_of("search", search, SEARCHES)
    checks.boolean("cutoffs", cutoffs)
    checks.one_of("distance", distance, DISTANCES)
    checks.boolean("keep_ranks", keep_ranks)
    is_euclidean = distance == "euclidean"
    if ignore_labels.checked(ignore_label) is not None:
        sides = (embeddings, labels, ids, categories)
        gallery_sides = (gallery_embeddings, gallery_labels, gallery_ids, gallery_categories)
        options = {"ks": ks, "search": search, "cutoffs": cutoffs, "distance": distance}
        return _evaluate_kept(sides, gallery_sides, junk, ignore_label, keep_ranks=keep_ranks, **options)
    _check_search(search, junk is not None, cutoffs, categories is not None, keep_ranks, is_euclidean)
    of_queries, of_gallery = (embeddings, labels, ids), (gallery_embeddings, gallery_labels, gallery_ids)
    queries, gallery, both, self_index, notes = _checked_rows(
        of_queries, of_gallery, junk is not None, is_euclidean
    )
    _check_junk(junk, len(queries), len(gallery))
    if np.all(both[1] == both[1][0]):
        notes += ("The gallery has images of one class only: no ranking can be wrong.",)
    relevance = {"": relevance_by_label(*both, self_index, junk)}
    coarser = _coarser(categories, gallery_categories, both, self_index, junk)
    leave_one_out = gallery_embeddings is None and junk is None and not is_euclidean
    if is_euclidean:
        queries, gallery = euclidean_rows(queries, gallery)
    task = RetrievalTask(
        np.arange(len(queries)), np.arange(len(gallery)), self_index, relevance, both, leave_one_out, coarser
    )
    task = answerable(task)
    ks, note = usable_ks(ks, task.ranked)
    search, why = usable(search)
    found = evaluate_task(queries, gallery, task, ks, search=search, cutoffs=cutoffs, keep_ranks=keep_ranks)[
        ""
    ]
    return Evaluation(
        found.metrics, found.per_query, found.ranks, tuple(dict.fromkeys(filter(None, (why, note, *notes))))
    )


class _Rows(NamedTuple):
    """Checked queries and gallery, which are one array if there is no gallery, and notes for the reader."""

    queries: np.ndarray
    gallery: np.ndarray
    labels: tuple[np.ndarray, np.ndarray]
    self_index: np.ndarray
    notes: tuple[str, ...]


def _checked_rows(of_queries, of_gallery, with_junk, is_euclidean) -> _Rows:
    """Checks embeddings, labels and ids of queries and gallery; raises InputError naming the bad argument."""
    (embeddings, labels, ids), (gallery_embeddings, gallery_labels, gallery_ids) = of_queries, of_gallery
    no_gallery = gallery_embeddings is None
    if no_gallery != (gallery_labels is None) or (no_gallery and gallery_ids is not None):
        raise InputError(
            "Give both gallery_embeddings and gallery_labels; or leave out both, and gallery_ids."
        )
    if ids is None and gallery_ids is not None:
        raise InputError("There are gallery_ids, but no ids to compare them with. Give both, or neither.")
    queries, query_labels, ids, notes = _checked("", is_euclidean, *of_queries)
    if no_gallery:
        return _Rows(queries, queries, (query_labels, query_labels), np.arange(len(queries)), notes)
    _check_largest(labels=labels, gallery_labels=gallery_labels)
    gallery, gallery_labels, gallery_ids, more = _checked("gallery_", is_euclidean, *of_gallery)
    self_index = _places(ids, gallery_ids, len(queries))
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"Queries have {queries.shape[1]} dimensions, the gallery has {gallery.shape[1]}. Embed both"
            " with the same model."
        )
    same = _stored_in(embeddings, gallery_embeddings) or _equal(queries, gallery)
    # `junk` may leave out the query itself.
    itself = ITSELF if same and not with_junk and np.all(self_index < 0) else ""
    return _Rows(queries, gallery, (query_labels, gallery_labels), self_index, (*notes, *more, itself))


def _evaluate_kept(queries, gallery, junk, ignore_label, **options):
    """Evaluates the images that have a class."""
    kept = ignore_labels.kept(np.ravel(queries[1]), ignore_label)
    in_gallery = kept if gallery[1] is None else ignore_labels.kept(np.ravel(gallery[1]), ignore_label)
    embeddings, labels, ids, categories = (_some(rows, kept) for rows in queries)
    names = ("gallery_embeddings", "gallery_labels", "gallery_ids", "gallery_categories")
    of_gallery = {name: _some(rows, in_gallery) for name, rows in zip(names, gallery)}
    if isinstance(junk, np.ndarray) and junk.shape == (len(kept), len(in_gallery)):
        junk = junk[np.ix_(kept, in_gallery)]
    found = evaluate(embeddings, labels, ids=ids, categories=categories, junk=junk, **of_gallery, **options)
    per_query = {}
    for name, values in found.per_query.items():
        per_query[name] = np.full(len(kept), np.nan)
        per_query[name][kept] = values
    left_out = np.sum(~kept) + (0 if in_gallery is kept else np.sum(~in_gallery))
    note = f"{left_out:,} images without a class (label {ignore_label}) are left out."
    return dataclasses.replace(
        found, per_query=per_query, notes=(*found.notes, note) if left_out else found.notes
    )


def _some(rows, kept):
    """Returns the rows that are kept; None, or rows of another number, as they are, for the checks."""
    return np.asarray(rows)[kept] if np.shape(rows)[:1] == kept.shape else rows


def _checked(prefix, is_euclidean, embeddings, labels, ids):
    """Returns rows, labels `[n]`, ids or None, and notes; raises InputError naming the bad argument.

    The rows have unit norm, unless ranking is Euclidean.
    """
    embeddings, labels = checked_embeddings(f"{prefix}embeddings", embeddings), np.asarray(labels)
    if labels.shape not in ((len(embeddings),), (len(embeddings), 1)) or labels.dtype.kind not in "iu":
        expected = f"{len(embeddings)} integers"
        raise checks.invalid(f"{prefix}labels", expected, f"{labels.dtype} {labels.shape}")
    if ids is not None:
        if np.shape(ids) != (len(embeddings),):
            raise checks.invalid(f"{prefix}ids", f"{len(embeddings)} names", np.shape(ids))
        # Convert to text, so that ids of queries and gallery can be compared.
        ids = np.array([text_of(name) for name in ids])
        check_unique(f"{prefix}ids", ids)
    labels = labels.reshape(-1).astype(np.int64)
    if is_euclidean:
        check_finite(embeddings, ids)
        return embeddings, labels, ids, (BY_EUCLIDEAN_DISTANCE,)
    rows, zeros = unit_rows(embeddings, ids)
    return rows, labels, ids, (zero_note(zeros),)


def _check_largest(**labels):
    """Raises InputError for a uint64 label that would wrap to a negative int64."""
    for name, one in labels.items():
        array = np.asarray(one)
        if array.dtype.kind == "u" and array.size and np.max(array) > np.iinfo(np.int64).max:
            raise checks.invalid(name, "integers below 2^63", np.max(array))


def _coarser(categories, gallery_categories, labels, self_index, junk) -> tuple[Relevance, ...]:
    """Returns what each query should find at each level of the categories, if there are some."""
    if categories is None and gallery_categories is None:
        return ()
    no_gallery = labels[0] is labels[1]
    if categories is None or no_gallery != (gallery_categories is None):
        raise InputError("Give categories, and gallery_categories if and only if there is a gallery.")
    queries = checked_categories("categories", categories, labels[0])
    gallery = queries
    if not no_gallery:
        gallery = checked_categories("gallery_categories", gallery_categories, labels[1])
        if queries.shape[1] != gallery.shape[1]:
            expected = f"{queries.shape[1]} levels, as the queries have"
            raise checks.invalid("gallery_categories", expected, gallery.shape[1])
    categories_of_classes(np.concatenate(labels), np.concatenate([queries, gallery]))
    return relevance_of_categories(queries, gallery, self_index, junk)


def _places(ids, gallery_ids, queries):
    """`[queries]` the gallery row with the query's id, or -1."""
    if ids is None or gallery_ids is None:
        return np.full(queries, -1)
    order = np.argsort(gallery_ids)
    place = np.minimum(np.searchsorted(gallery_ids[order], ids), len(gallery_ids) - 1)
    return np.where(gallery_ids[order[place]] == ids, order[place], -1)


def _stored_in(queries, gallery):
    """Whether each query shares its memory with a row of the gallery."""
    queries, gallery = np.asarray(queries), np.asarray(gallery)
    starts = (rows.ctypes.data + rows.strides[0] * np.arange(len(rows)) for rows in (queries, gallery))
    return queries.strides[1] == gallery.strides[1] and bool(np.isin(*starts).all())


def _equal(queries, gallery):
    """Whether both have the same rows in the same order; reads blocks up to the first difference."""
    starts = range(0, len(queries), BLOCK)
    return queries.shape == gallery.shape and all(
        np.array_equal(queries[start : start + BLOCK], gallery[start : start + BLOCK]) for start in starts
    )


def _check_search(search, junk, cutoffs, categories, keep_ranks, is_euclidean):
    """Raises InputError if something is asked for that only exact search does."""
    asked = {
        "leaves out junk": junk,
        "measures mAP@K, nDCG@K and MRR@K": cutoffs,
        "measures H-AP, graded nDCG and ASI": categories,
        "gives all ranks": keep_ranks,
        "ranks by Euclidean distance": is_euclidean,
    }
    if search != "exact" and any(asked.values()):
        what = next(what for what, one in asked.items() if one)
        raise InputError(f"Only exact search {what}. Give search='exact'.")


def _check_junk(junk, queries, gallery):
    if junk is None:
        return
    if not isinstance(junk, np.ndarray) or junk.shape != (queries, gallery) or junk.dtype != bool:
        received = f"{junk.dtype} {junk.shape}" if isinstance(junk, np.ndarray) else type(junk).__name__
        raise checks.invalid("junk", f"bools of shape {(queries, gallery)}", received)
