"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

from tfrank.losses import (
    LOSSES,
    BlackboxAPLoss,
    CircleLoss,
    FastAPLoss,
    HistogramLoss,
    MarginLoss,
    MultiSimilarityLoss,
    PNPLoss,
    QuantizedAPLoss,
    RankedListLoss,
    RankingLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    SupAPLoss,
    WeightedSum,
    metrics,
)
from tfrank.training.multi_stage_model import MultiStageModel

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "BlackboxAPLoss",
    "CircleLoss",
    "FastAPLoss",
    "HistogramLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "MultiStageModel",
    "PNPLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SupAPLoss",
    "WeightedSum",
    "__version__",
    "metrics",
]
