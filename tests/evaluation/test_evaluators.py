"""The list of the evaluators beside the fields of the config and the options of rankings."""

import inspect

import numpy as np
import pytest

from tfrank.configs.default import get_config
from tfrank.evaluation import evaluators
from tfrank.evaluation.evaluators import EVALUATORS, Evaluator, switched_on
from tfrank.evaluation.protocols import PROTOCOLS, TestSet
from tfrank.evaluation.ranking_results import evaluate_tasks
from tfrank.run.evaluation_results import evaluate_embeddings

DEFAULTS = get_config().evaluation.as_dict()


@pytest.mark.parametrize("evaluator", EVALUATORS, ids=[one.field for one in EVALUATORS])
def test_each_is_switched_on_by_a_field_of_the_config_that_is_false_by_default(evaluator):
    assert DEFAULTS[evaluator.field] is False
    assert switched_on(DEFAULTS | {evaluator.field: True}, ["leave_one_out"]) == [evaluator]
    assert evaluator.protocol in {"", *PROTOCOLS}


def test_by_default_none_is_on():
    assert switched_on(DEFAULTS, ["leave_one_out"]) == []


def test_those_of_rankings_are_options_of_the_evaluation_of_tasks():
    ranking = {one.field for one in EVALUATORS if not one.measure}
    assert ranking == {"cutoffs", "hierarchical"} <= inspect.signature(evaluate_tasks).parameters.keys()


def test_an_entry_and_its_field_are_all_that_an_evaluator_of_embeddings_needs(monkeypatch):
    config = get_config().evaluation
    # Stands in for a field of its own.
    config.update(baselines=True, recall_at=(1,))
    new = Evaluator("baselines", "size", measure=lambda rows, labels: {"size": rows.size}, note=str)
    monkeypatch.setattr(evaluators, "EVALUATORS", (*EVALUATORS, new))
    test = TestSet(np.arange(6) // 2, np.arange(6).astype(str), np.full(6, ""), np.full(6, -1))
    found = evaluate_embeddings(config, np.eye(6, dtype=np.float32), test)
    assert found.extras["size"] == 36 and "{'size': 36}" in found.notes
