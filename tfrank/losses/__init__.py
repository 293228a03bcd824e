"""Ranking losses. One row in `LOSSES` is what makes a loss reachable by name, and tested."""

from typing import Any

from tfrank import checks
from tfrank.losses import metrics
from tfrank.losses.blackbox_ap import BlackboxAPLoss
from tfrank.losses.circle import CircleLoss
from tfrank.losses.fast_ap import FastAPLoss
from tfrank.losses.histogram import HistogramLoss
from tfrank.losses.map_q import QuantizedAPLoss
from tfrank.losses.margin import MarginLoss
from tfrank.losses.multi_similarity import MultiSimilarityLoss
from tfrank.losses.pnp import PNPLoss
from tfrank.losses.ranking_loss import RankingLoss
from tfrank.losses.recall_at_k import RecallAtKLoss
from tfrank.losses.rll import RankedListLoss
from tfrank.losses.smooth_ap import SmoothAPLoss
from tfrank.losses.sup_ap import SupAPLoss
from tfrank.losses.weighted_sum import WeightedSum

LOSSES: dict[str, type[RankingLoss]] = {
    "pnp": PNPLoss,
    "smooth_ap": SmoothAPLoss,
    "map_q": QuantizedAPLoss,
    "rll": RankedListLoss,
    "fast_ap": FastAPLoss,
    "blackbox_ap": BlackboxAPLoss,
    "recall_at_k": RecallAtKLoss,
    "sup_ap": SupAPLoss,
    "multi_similarity": MultiSimilarityLoss,
    "circle": CircleLoss,
    "margin": MarginLoss,
    "histogram": HistogramLoss,
}


def get(name: str, **hyper_parameters: Any) -> RankingLoss:
    """The loss of that name.

    >>> get("smooth_ap", temperature=0.05).get_config()["temperature"]
    0.05
    """
    return LOSSES[checks.one_of("loss", name, LOSSES)](**hyper_parameters)


__all__ = [
    "LOSSES",
    "BlackboxAPLoss",
    "CircleLoss",
    "FastAPLoss",
    "HistogramLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "PNPLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "WeightedSum",
    "get",
    "metrics",
]
