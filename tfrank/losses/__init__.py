"""Ranking losses. A row in `LOSSES` makes a loss available by name and includes it in the tests."""

import inspect
from typing import Any

from tfrank.common import checks
from tfrank.losses import metrics
from tfrank.losses.addons import ADDONS, PREFIX, AddonsLoss
from tfrank.losses.asymmetric import AsymmetricLoss
from tfrank.losses.blackbox_ap import BlackboxAPLoss
from tfrank.losses.circle import CircleLoss
from tfrank.losses.contrastive import ContrastiveLoss
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.cross_batch_memory import CrossBatchMemory
from tfrank.losses.fast_ap import FastAPLoss
from tfrank.losses.hierarchical_ap import HierarchicalAPLoss
from tfrank.losses.histogram import HistogramLoss
from tfrank.losses.lifted_structure import LiftedStructureLoss
from tfrank.losses.map_q import QuantizedAPLoss
from tfrank.losses.margin import MarginLoss
from tfrank.losses.matryoshka import MatryoshkaLoss
from tfrank.losses.multi_label_sup_con import MultiLabelSupConLoss
from tfrank.losses.multi_similarity import MultiSimilarityLoss
from tfrank.losses.n_pairs import NPairsLoss
from tfrank.losses.pnp import PNPLoss
from tfrank.losses.proxies import PROXY_LOSSES, ProxyLoss
from tfrank.losses.recall_at_k import RecallAtKLoss
from tfrank.losses.regression import RegressionLoss
from tfrank.losses.relational import RelationalLoss
from tfrank.losses.rll import RankedListLoss
from tfrank.losses.smooth_ap import SmoothAPLoss
from tfrank.losses.sup_ap import SupAPLoss
from tfrank.losses.sup_con import SupConLoss
from tfrank.losses.tcm import ThresholdConsistentMarginLoss
from tfrank.losses.triplet import TripletLoss
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
    "hierarchical_ap": HierarchicalAPLoss,
    "triplet": TripletLoss,
    "contrastive": ContrastiveLoss,
    "n_pairs": NPairsLoss,
    "lifted_structure": LiftedStructureLoss,
    "multi_similarity": MultiSimilarityLoss,
    "circle": CircleLoss,
    "sup_con": SupConLoss,
    "tcm": ThresholdConsistentMarginLoss,
    "margin": MarginLoss,
    "histogram": HistogramLoss,
}

NAMES = (*LOSSES, *PROXY_LOSSES, *ADDONS)
# Arguments of constructors that are no hyper-parameters: what Keras' losses take, and what the data says.
_OTHERS = ("labels", "categories", "reduction", "ignore_label", "name")


def hyper_parameters(name: str) -> dict[str, Any]:
    """Returns the hyper-parameters of the loss with this name, with the defaults of its constructor.

    >>> hyper_parameters("smooth_ap")
    {'temperature': 0.01, 'include_self': False}
    """
    if name in ADDONS:
        return dict(ADDONS[name].defaults)
    signature = inspect.signature((LOSSES | PROXY_LOSSES)[name])
    return {key: one.default for key, one in signature.parameters.items() if key not in _OTHERS}


def get(name: str, **hyper_parameters: Any) -> RankingLoss | ProxyLoss | AddonsLoss:
    """Returns the loss with the given name: a key of `LOSSES`, `PROXY_LOSSES` (with `labels`) or `ADDONS`.

    >>> get("smooth_ap", temperature=0.05).get_config()["temperature"]
    0.05
    >>> get("proxy_nca", labels=[3, 7, 3]).labels.tolist()
    [3, 7]
    """
    if str(name).startswith(PREFIX):
        return AddonsLoss(name, **hyper_parameters)
    classes = LOSSES | PROXY_LOSSES
    return classes[checks.one_of("loss", name, classes)](**hyper_parameters)


__all__ = [
    "ADDONS",
    "LOSSES",
    "AddonsLoss",
    "AsymmetricLoss",
    "BlackboxAPLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "HierarchicalAPLoss",
    "HistogramLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MatryoshkaLoss",
    "MultiLabelSupConLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "PNPLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "RegressionLoss",
    "RelationalLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletLoss",
    "WeightedSum",
    "get",
    "metrics",
]
