"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

# Without a GPU TensorFlow would begin with a page of messages about it. Before its first import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if os.path.exists("/dev/nvidiactl") else "3")

from tfrank.common import tensorflow_log
from tfrank.common.checks import InputError
from tfrank.losses import (
    LOSSES,
    AsymmetricLoss,
    BlackboxAPLoss,
    CircleLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    FastAPLoss,
    HierarchicalAPLoss,
    HistogramLoss,
    LiftedStructureLoss,
    MarginLoss,
    MatryoshkaLoss,
    MultiLabelSupConLoss,
    MultiSimilarityLoss,
    NPairsLoss,
    PNPLoss,
    QuantizedAPLoss,
    RankedListLoss,
    RankingLoss,
    RecallAtKLoss,
    RegressionLoss,
    RelationalLoss,
    SmoothAPLoss,
    SupAPLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
    TripletLoss,
    WeightedSum,
    metrics,
)
from tfrank.losses.proxies import (
    PROXY_LOSSES,
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    Proxies,
    ProxyAnchorLoss,
    ProxyLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
)
from tfrank.training.multi_stage_model import MultiStageModel

if TYPE_CHECKING:
    from tfrank import callbacks, data, evaluation, search

tensorflow_log.follow_level()

__version__ = "0.2.0"

__all__ = [
    "LOSSES",
    "PROXY_LOSSES",
    "ArcFaceLoss",
    "AsymmetricLoss",
    "BlackboxAPLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossBatchMemory",
    "FastAPLoss",
    "HierarchicalAPLoss",
    "HistogramLoss",
    "InputError",
    "LiftedStructureLoss",
    "MarginLoss",
    "MatryoshkaLoss",
    "MultiLabelSupConLoss",
    "MultiSimilarityLoss",
    "MultiStageModel",
    "NPairsLoss",
    "NormalizedSoftmaxLoss",
    "PNPLoss",
    "Proxies",
    "ProxyAnchorLoss",
    "ProxyLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "QuantizedAPLoss",
    "RankedListLoss",
    "RankingLoss",
    "RecallAtKLoss",
    "RegressionLoss",
    "RelationalLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SupAPLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletLoss",
    "WeightedSum",
    "__version__",
    "callbacks",
    "data",
    "evaluation",
    "metrics",
    "search",
]


def __getattr__(name: str) -> ModuleType:
    """Imports `callbacks`, `data`, `evaluation` or `search` when it is first used."""
    if name in ("callbacks", "data", "evaluation", "search"):
        return importlib.import_module(f"tfrank.{name}")
    raise AttributeError(f"module 'tfrank' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names, which tab completion offers."""
    return __all__
