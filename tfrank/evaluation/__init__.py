"""Search, ranks, metrics and reports."""

from tfrank.evaluation.evaluate_arrays import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
