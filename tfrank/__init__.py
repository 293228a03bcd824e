"""tfrank: train, measure and ship image-retrieval models by optimising the ranking."""

from tfrank.losses import LOSSES, PNPLoss, RankingLoss, SmoothAPLoss

__version__ = "0.1.0"

__all__ = ["LOSSES", "PNPLoss", "RankingLoss", "SmoothAPLoss", "__version__"]
