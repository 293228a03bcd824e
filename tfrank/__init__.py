"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

import os

# Without a GPU TensorFlow would begin with a page of messages about it. Before its first import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if os.path.exists("/dev/nvidiactl") else "3")

from tfrank import callbacks, data
from tfrank.common import tensorflow_log
from tfrank.common.checks import InputError
from tfrank.losses import (
    LOSSES,
    BlackboxAPLoss,
    CircleLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    FastAPLoss,
    HistogramLoss,
    LiftedStructureLoss,
    MarginLoss,
    MultiSimilarityLoss,
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

tensorflow_log.follow_level()

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "PROXY_LOSSES",
    "ArcFaceLoss",
    "BlackboxAPLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "HistogramLoss",
    "InputError",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
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
    "callbacks",
    "data",
    "metrics",
]
