"""Evaluation of plain arrays in one call, with all retrieval metrics."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfrank.common import checks
from tfrank.common.categories import categories_of_classes, checked_categories
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.evaluation.protocols import RetrievalTask, text_of
from tfrank.evaluation.ranking_results import answerable, evaluate_task
from tfrank.evaluation.relevance import Relevance, relevance_by_label, relevance_of_categories
from tfrank.evaluation.report import text
from tfrank.evaluation.retrieval_metrics import usable_ks
from tfrank.evaluation.retrieval_ranks import Ranks
from tfrank.evaluation.search.by_name import SEARCHES, usable

# Rows processed together.
BLOCK = 65_536
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
        ranks: the ranks of the positives of each query, from 1; None after an approximate search.
        notes: remarks for the reader of the metrics.
    """

    metrics: dict[str, float]
    per_query: dict[str, np.ndarray]
    ranks: Ranks | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([text.listing({"": self.metrics}), *self.notes])


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
) -> Evaluation:
    """Recall@K and precision@K for any K, mAP, mAP@R, R-precision, MRR and nDCG, exactly.

    Without a gallery, each image is the query once and all others are the gallery. Similarities are cosines.
    A negative as similar as a positive is ranked before it. Queries without a positive are counted, and left
    out of every mean. Memory is that of the embeddings and of blocks, never queries x gallery.

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
            coarser categories. With it, `hierarchical_map` is measured too; only with exact search.
        gallery_categories: the same for the gallery.

    Raises:
        InputError: an embedding is not finite (named by its id), shapes or labels do not match, an id is
            repeated, `gallery_ids` are given without `ids`, or there is nothing to retrieve.

    >>> found = evaluate(np.float32([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), np.array([5, 5, 7, 7]), ks=[1])
    >>> found.metrics["recall_at_1"], found.metrics["map"], found.metrics["queries"]
    (1.0, 1.0, 4)
    """
    checks.one_of("search", search, SEARCHES)
    checks.boolean("cutoffs", cutoffs)
    _check_search(search, junk is not None, cutoffs, categories is not None)
    no_gallery = gallery_embeddings is None
    if no_gallery != (gallery_labels is None) or (no_gallery and gallery_ids is not None):
        raise InputError(
            "Give both gallery_embeddings and gallery_labels; or leave out both, and gallery_ids."
        )
    if ids is None and gallery_ids is not None:
        raise InputError("There are gallery_ids, but no ids to compare them with. Give both, or neither.")
    given_labels = labels
    queries, labels, ids, notes = _checked("", embeddings, labels, ids)
    gallery, self_index, leave_one_out = queries, np.arange(len(queries)), junk is None
    both = labels, labels
    if not no_gallery:
        _check_largest(labels=given_labels, gallery_labels=gallery_labels)
        gallery, gallery_labels, gallery_ids, more = _checked(
            "gallery_", gallery_embeddings, gallery_labels, gallery_ids
        )
        self_index, leave_one_out = _places(ids, gallery_ids, len(queries)), False
        both, notes = (labels, gallery_labels), notes + more
        if queries.shape[1] != gallery.shape[1]:
            raise InputError(
                f"Queries have {queries.shape[1]} dimensions, the gallery has {gallery.shape[1]}. Embed both"
                " with the same model."
            )
        same = _stored_in(embeddings, gallery_embeddings) or _equal(queries, gallery)
        # `junk` may leave out the query itself.
        notes += (ITSELF if same and junk is None and np.all(self_index < 0) else "",)
    _check_junk(junk, len(queries), len(gallery))
    if np.all(both[1] == both[1][0]):
        notes += ("The gallery has images of one class only: no ranking can be wrong.",)
    relevance = {"": relevance_by_label(*both, self_index, junk)}
    coarser = _coarser(categories, gallery_categories, both, self_index, junk)
    task = RetrievalTask(
        np.arange(len(queries)), np.arange(len(gallery)), self_index, relevance, both, leave_one_out, coarser
    )
    task = answerable(task)
    ks, note = usable_ks(ks, task.ranked)
    search, why = usable(search)
    found = evaluate_task(queries, gallery, task, ks, search=search, cutoffs=cutoffs)[""]
    return Evaluation(found.metrics, found.per_query, found.ranks, tuple(filter(None, (why, note, *notes))))


def _checked(prefix, embeddings, labels, ids):
    """Returns unit rows, labels `[n]`, ids or None, and notes; raises InputError naming the bad argument."""
    embeddings, labels = np.asarray(embeddings), np.asarray(labels)
    if embeddings.ndim != 2 or not (embeddings.dtype.kind == "f" or embeddings.dtype == "bfloat16"):
        expected = "floats of shape [images, dim]"
        raise checks.invalid(f"{prefix}embeddings", expected, f"{embeddings.dtype} {embeddings.shape}")
    if 0 in embeddings.shape:
        raise checks.invalid(f"{prefix}embeddings", "at least one image and one dimension", embeddings.shape)
    if labels.shape not in ((len(embeddings),), (len(embeddings), 1)) or labels.dtype.kind not in "iu":
        expected = f"{len(embeddings)} integers"
        raise checks.invalid(f"{prefix}labels", expected, f"{labels.dtype} {labels.shape}")
    if ids is not None:
        if np.shape(ids) != (len(embeddings),):
            raise checks.invalid(f"{prefix}ids", f"{len(embeddings)} names", np.shape(ids))
        # Convert to text, so that ids of queries and gallery can be compared.
        ids = np.array([text_of(name) for name in ids])
        check_unique(f"{prefix}ids", ids)
    rows, zeros = unit_rows(embeddings, ids)
    return rows, labels.reshape(-1).astype(np.int64), ids, (zero_note(zeros),)


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


def zero_note(zeros: int) -> str:
    """A note on this number of zero embeddings; "" if there are none."""
    return f"{zeros:,} embeddings are zero; their similarity to everything is 0." if zeros else ""


def check_unique(name: str, ids: np.ndarray) -> None:
    """Raises InputError, naming an id, if an id is repeated."""
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        twice = names[np.argmax(counts > 1)]
        repeated = len(ids) - len(names)
        raise InputError(
            f"`{name}` has {text_of(twice)!r} more than once ({repeated:,} repeated). Give each"
            " image an id of its own."
        )


def unit_rows(embeddings: np.ndarray, ids: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """The rows in float32 with unit norm, and the number of zero rows.

    Rows that are float32 and of unit norm already keep their bits. If all are, they are not copied.

    Raises:
        InputError: a row is not finite; it is named by its id or, without ids, by its number.
    """
    unit, zeros = embeddings.dtype == np.float32, 0
    for start in range(0, len(embeddings), BLOCK):
        block = _float64(embeddings[start : start + BLOCK])
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad):
            number = start + int(bad[0])
            name = f"image {number}" if ids is None else repr(text_of(ids[number]))
            raise InputError(f"The embedding of {name} is not finite. The model may have diverged.")
        zeros += int(np.sum(~block.any(axis=1)))
        unit = unit and bool(np.all(_are_unit(block) | ~block.any(axis=1)))
    if unit:
        return embeddings, zeros
    result = np.empty(embeddings.shape, np.float32)
    for start in range(0, len(embeddings), BLOCK):
        block = _float64(embeddings[start : start + BLOCK])
        largest = np.abs(block).max(axis=1, keepdims=True)
        # Divide by the largest value first, so that norms neither underflow nor overflow.
        normalized = l2_normalize(block / np.where(largest > 0, largest, 1))
        kept = _are_unit(block)[:, None] & (embeddings.dtype == np.float32)
        result[start : start + BLOCK] = np.where(kept, block, normalized)
    return result, zeros


def _are_unit(rows):
    with np.errstate(over="ignore"):
        return np.abs(np.linalg.norm(rows, axis=1) - 1) < 1e-6


def _float64(rows):
    with np.errstate(over="ignore"):
        return np.asarray(rows).astype(np.float64)


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


def _check_search(search, junk, cutoffs, categories):
    """Raises InputError if something is asked for that only exact search does."""
    asked = {
        "leaves out junk": junk,
        "measures mAP@K, nDCG@K and MRR@K": cutoffs,
        "measures H-AP": categories,
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
