"""Traced steps leave nothing behind, so that many models can be trained in one process."""

import gc

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from tests.cases import slow
from tests.command_lines import run_alone
from tests.losses import LABELS, embeddings, value_and_gradient
from tests.programs import printed_json
from tfrank import losses


def traced(name):
    """A training step of a new loss; each is a graph of its own, as that of each Keras model."""
    loss = losses.get(name)
    step = tf.function(lambda labels, rows: value_and_gradient(loss, labels, rows), autograph=False)
    return step.get_concrete_function(tf.constant(LABELS), tf.constant(embeddings("float32")))


def held():
    """Graphs in memory, and gradient functions that TensorFlow keeps for ever."""
    gc.collect()
    graphs = sum(isinstance(thing, FuncGraph) for thing in gc.get_objects())
    return graphs, len(ops.gradient_registry.list())


@pytest.mark.parametrize(
    "name", ["contrastive", slow("pnp"), slow("smooth_ap"), slow("sup_con"), slow("tcm")]
)
def test_a_second_step_of_a_loss_leaves_no_graph_and_no_gradient_function(name):
    traced(name)
    before = held()
    for _ in range(3):
        traced(name)
    assert held() == before


def test_the_graph_of_a_step_has_few_operations_of_the_loss():
    """Keras keeps the graph of each step that it has traced, as its optimizers have custom gradients."""
    assert len(traced("contrastive").graph.get_operations()) < 330


@pytest.mark.slow
def test_a_model_and_its_fit_leave_at_most_8_mb_more_with_a_ranking_loss_than_with_a_plain_one():
    """Keras keeps the graph of each step, and that graph a copy of the loss's functions: 6 MB."""
    plain, ranking = (
        printed_json("-m", "tests.losses.core.fits_run", name, run=run_alone) for name in ("plain", "pnp")
    )
    assert ranking - plain < 8
