"""Search, ranks, metrics and reports."""

from tfrank.evaluation.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
