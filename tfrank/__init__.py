"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

from tfrank.losses import (
    LOSSES,
    BlackboxAPLoss,
    ContrastiveLoss,
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
from tfrank.training.multi_stage_model import MultiStageModel

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "BlackboxAPLoss",
    "ContrastiveLoss",
    "FastAPLoss",
    "LiftedStructureLoss",
    "MultiStageModel",
    "NPairsLoss",
    "PNPLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "TripletLoss",
    "WeightedSum",
    "__version__",
    "metrics",
]
