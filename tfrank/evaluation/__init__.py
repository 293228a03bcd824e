"""Search, ranks, metrics and reports."""

from tfrank.evaluation.evaluate_arrays import Evaluation, evaluate
from tfrank.evaluation.nearest.scann_index import ScannIndex

__all__ = ["Evaluation", "ScannIndex", "evaluate"]
