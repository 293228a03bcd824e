"""One line for each model: its mean metric with an interval, and the difference to the last model."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.class_means import class_mean
from tfrank.evaluation.report.bootstrap import BootstrapInterval, paired_bootstrap


class ModelSummary(NamedTuple):
    """A model in a table that compares models by one metric.

    Attributes:
        name: the name of the model.
        over_queries: the mean of the metric over the queries, with its 95 % interval; see `paired_bootstrap`.
        over_classes: the mean of the metric over classes; None if classes are not known.
        difference: the last model's mean minus this one's, on the queries that both have; None for the last.
    """

    name: str
    over_queries: BootstrapInterval
    over_classes: float | None
    difference: BootstrapInterval | None


def summarize_models(values: Mapping[str, np.ndarray], labels: np.ndarray | None) -> list[ModelSummary]:
    """One `ModelSummary` for each model. All models are compared with the last one.

    Args:
        values: from the name of a model to `[queries]` values of a metric; NaN if the model has no value.
        labels: `[queries]` integers. Whole classes are resampled for the intervals. None: not known.

    Raises:
        InputError: a model has no query in common with the last one.

    >>> for one in summarize_models({"before": np.zeros(6), "after": np.ones(6)}, np.arange(6)):
    ...     print(one.name, one.over_queries.mean, one.over_classes, one.difference and one.difference.mean)
    before 0.0 0.0 1.0
    after 1.0 1.0 None
    """
    *_, last = values
    return [
        ModelSummary(
            name,
            paired_bootstrap(np.zeros(len(one)), one, groups=labels),
            None if labels is None else class_mean(one, labels),
            None if name == last else paired_bootstrap(one, values[last], groups=labels),
        )
        for name, one in values.items()
    ]
