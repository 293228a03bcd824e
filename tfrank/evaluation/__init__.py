"""Search, ranks, metrics and reports."""

from tfrank.evaluation.one_call import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
