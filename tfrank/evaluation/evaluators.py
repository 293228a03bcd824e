"""The list of the evaluators: what a config can have measured besides the usual metrics, and what that needs.

A new evaluator of embeddings needs an entry in `EVALUATORS`, and a field of the config that switches it on,
in `tfrank/configs/sections/evaluation.py`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfrank.evaluation import clusters, open_sets, verification
from tfrank.evaluation.protocols import TEMPLATE_PAIRS


class Evaluator(NamedTuple):
    """Measures the embeddings as a whole; without `measure`, the rankings: an option of `evaluate_tasks`.

    Attributes:
        field: the name of its field of the config, and of its option.
        name: the name in messages.
        exact: whether it needs exact search.
        classes: whether it needs the class of every image.
        categories: whether it needs the category of every query.
        measure: maps `[rows, dim]` unit-norm embeddings and `[rows]` labels to metrics.
        check: raises InputError if rows of these `[rows]` labels cannot be measured.
        note: returns what a reader of the metrics should know, or "".
        protocol: the protocol that measures the same by pairs of its own, and switches this off.
    """

    field: str
    name: str
    exact: bool = False
    classes: bool = False
    categories: bool = False
    measure: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None = None
    check: Callable[[np.ndarray], None] = lambda labels: None
    note: Callable[[Mapping[str, float]], str] = lambda metrics: ""
    protocol: str = ""


# In the order in which reports list their metrics.
EVALUATORS = (
    Evaluator("cutoffs", "Metrics of the K nearest", exact=True),
    Evaluator("hierarchical", "Graded relevance", exact=True, categories=True),
    Evaluator("nmi", "NMI", classes=True, measure=clusters.cluster_agreement),
    Evaluator(
        *("verification", "verification"),
        classes=True,
        measure=verification.verification,
        check=verification.check_pairs,
        note=verification.note,
        protocol=TEMPLATE_PAIRS,
    ),
    Evaluator(
        *("open_set", "open sets"),
        classes=True,
        measure=open_sets.open_set,
        check=open_sets.check,
        note=open_sets.note,
    ),
)


def switched_on(options: Mapping[str, Any], protocols: Collection[str]) -> list[Evaluator]:
    """Returns the evaluators that the options of a config switch on, where these protocols are measured.

    >>> [one.field for one in switched_on({"nmi": True, "verification": True}, ["template_pairs"])]
    ['nmi']
    """
    return [one for one in EVALUATORS if options.get(one.field) and one.protocol not in protocols]
