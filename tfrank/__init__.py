"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

from tfrank.losses import (
    LOSSES,
    BlackboxAPLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    FastAPLoss,
    LiftedStructureLoss,
    NPairsLoss,
    PNPLoss,
    QuantizedAPLoss,
    RankedListLoss,
    RankingLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    SupAPLoss,
    TripletLoss,
    WeightedSum,
    metrics,
)
from tfrank.losses.proxies import (
    PROXY_LOSSES,
    ArcFaceLoss,
    NormalizedSoftmaxLoss,
    Proxies,
    ProxyLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
)
from tfrank.training.multi_stage_model import MultiStageModel

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "PROXY_LOSSES",
    "ArcFaceLoss",
    "BlackboxAPLoss",
    "ContrastiveLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "LiftedStructureLoss",
    "MultiStageModel",
    "NPairsLoss",
    "NormalizedSoftmaxLoss",
    "PNPLoss",
    "Proxies",
    "ProxyLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SupAPLoss",
    "TripletLoss",
    "WeightedSum",
    "__version__",
    "metrics",
]
