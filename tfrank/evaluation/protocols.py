"""Who is query, who is gallery, and the numbers that come out."""

from collections.abc import Sequence

import numpy as np

from tfrank.evaluation import metrics
from tfrank.evaluation.neighbors import exact, search
from tfrank.evaluation.ranks import by_label, positive_ranks

# Queries on which an approximate search is compared with the exact one.
CHECKED_QUERIES = 1000


def leave_one_out(
    embeddings: np.ndarray, labels: np.ndarray, ks: Sequence[int], *, neighbors: str = "exact"
) -> dict[str, float]:
    """Every image in turn is the query, all others are the gallery.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        labels: `[images]` integers.
        ks: the Ks of Recall@K; those above the number of other images are left out.
        neighbors: "exact": ranks over the whole gallery, with mAP. "scann": from the max(ks) nearest, so
            without mAP, and with `scann_recall`, the share of the exact neighbours that it found for a
            sample of queries.

    Returns:
        `recall_at_<k>`, `map`, `queries` (that count), `lone_queries` (left out).
    """
    own = np.arange(len(labels))
    ks = [k for k in ks if k < len(labels)] or [1]
    if neighbors == "exact":
        truth = by_label(labels, labels, own)
        summary = metrics.summarize(metrics.per_query(positive_ranks(embeddings, embeddings, truth), ks))
        recalls = {f"recall_at_{k}": summary[f"recall_at_{k}"] for k in ks}
        return recalls | {key: summary[key] for key in ("map", "queries", "lone_queries")}
    found = search(neighbors)(embeddings, embeddings, max(ks), own).index
    recalls = metrics.neighbor_recalls(found, labels, labels, own, ks)
    sample = np.random.default_rng(0).permutation(len(labels))[:CHECKED_QUERIES]
    truth = exact(embeddings[sample], embeddings, max(ks), own[sample]).index
    shares = [len(np.intersect1d(a[a >= 0], b)) / sum(a >= 0) for a, b in zip(truth, found[sample])]
    return {**recalls, f"{neighbors}_recall": float(np.mean(shares))}
