"""Comparison of models: the mean of each with its interval, and the difference to the last model."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.by_class import class_mean
from tfrank.evaluation.report.bootstrap import Comparison, paired_bootstrap


class Standing(NamedTuple):
    """A model in the first table of a report.

    Attributes:
        name: the name of the model.
        mean: the mean of a metric over the queries, with its 95 % interval; see `paired_bootstrap`.
        by_class: the mean of the metric over classes; None if classes are not known.
        difference: the last model's mean minus this one's, on the queries that both have; None for the last.
    """

    name: str
    mean: Comparison
    by_class: float | None
    difference: Comparison | None


def standings(values: Mapping[str, np.ndarray], labels: np.ndarray | None) -> list[Standing]:
    """One `Standing` for each model. All models are compared with the last one.

    Args:
        values: from the name of a model to `[queries]` values of a metric; NaN if the model has no value.
        labels: `[queries]` integers. Whole classes are resampled for the intervals. None: not known.

    Raises:
        InputError: a model has no query in common with the last one.

    >>> for one in standings({"before": np.zeros(6), "after": np.ones(6)}, np.arange(6)):
    ...     print(one.name, one.mean.difference, one.by_class, one.difference and one.difference.difference)
    before 0.0 0.0 1.0
    after 1.0 1.0 None
    """
    *_, last = values
    return [
        Standing(
            name,
            paired_bootstrap(np.zeros(len(one)), one, groups=labels),
            None if labels is None else class_mean(one, labels),
            None if name == last else paired_bootstrap(one, values[last], groups=labels),
        )
        for name, one in values.items()
    ]
