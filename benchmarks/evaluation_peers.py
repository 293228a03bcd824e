"""The metrics of pytorch-metric-learning and of OpenMetricLearning (OML), beside those of `tfrank.evaluate`.

The first is in the extra `bench`. The second asks for NumPy 1, which tfrank does not run on; its metrics run
on NumPy 2 nonetheless: `pip install --no-deps open-metric-learning; pip install omegaconf gdown validators`.

Where they differ in definition, ours are brought to theirs here:
- OML's precision@k is divided by min(k, R), ours and the usual one by k. R is how many positives a query has.
- OML's map@k is divided by how many positives are among the k nearest, and is AP only where k is all images.
- OML counts a query without a positive as 0; it is left out here, as ours and pytorch-metric-learning do.
"""

import numpy as np

from tfrank.evaluation import evaluate
from tfrank.evaluation import retrieval_metrics as metrics

KS = (1, 10)
# Of pytorch-metric-learning, and what ours are called.
NAMES = {
    "precision_at_1": "recall_at_1",
    "r_precision": "r_precision",
    "mean_average_precision_at_r": "map_at_r",
    "mean_average_precision": "map",
    "mean_reciprocal_rank": "mrr",
}


def pairs_of_pml(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, tuple[float, float]]:
    """(ours, theirs) of each metric of pytorch-metric-learning, which searches by FAISS.

    Args:
        embeddings: `[images, dim]` float32, unit norm; each in turn is the query, the others the gallery.
        labels: `[images]` integers.
    """
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    # All images are looked at: mAP and MRR need them.
    calculator = AccuracyCalculator(include=tuple(NAMES), k=len(labels) - 1, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(torch.tensor(embeddings), torch.tensor(labels))
    ours = evaluate(embeddings, labels, ks=KS).metrics
    return {name: (ours[NAMES[name]], theirs[name]) for name in NAMES}


def pairs_of_oml(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, tuple[float, float]]:
    """(ours, theirs) of each metric of OML, as `pairs_of_pml`."""
    import torch
    from oml.functional.knn import batched_knn
    from oml.functional.metrics import calc_retrieval_metrics

    everything = torch.arange(len(labels))
    _, found, right = batched_knn(
        torch.tensor(embeddings),
        everything,
        everything,
        top_n=len(labels),
        labels_gt=torch.tensor(labels),
    )
    theirs = calc_retrieval_metrics(
        found,
        right,
        cmc_top_k=KS,
        precision_top_k=KS,
        map_top_k=(len(labels) - 1,),
        reduce=False,
        verbose=False,
    )
    ranks = evaluate(embeddings, labels, ks=KS, keep_ranks=True).ranks
    valid = ranks.positives > 0
    pairs = {"map": (metrics.average_precision(ranks), theirs["map"][len(labels) - 1])}
    for k in KS:
        share = metrics.precision_at_k(ranks, k)[valid] * k / np.minimum(k, ranks.positives[valid])
        pairs[f"cmc@{k}"] = metrics.recall_at_k(ranks, k), theirs["cmc"][k]
        pairs[f"precision@{k}"] = share, theirs["precision"][k]
    return {name: (float(np.nanmean(ours)), _mean(other, valid)) for name, (ours, other) in pairs.items()}


def _mean(values, valid):
    return float(np.mean(np.asarray(values, np.float64)[valid]))
