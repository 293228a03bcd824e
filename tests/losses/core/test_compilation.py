"""Blocks of rows, graphs, tapes and compilation change no result, and compile no more than they must."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses import (
    KINDS,
    LABELS,
    ONE_OF_EACH_KIND,
    RECIPES,
    embeddings,
    one_loss_of_each_kind,
    value_and_gradient,
)
from tests.losses.core.cores import (
    CORES,
    assert_same,
    values_and_gradients,
)
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.core import rows

# Losses of each kind, and those in which labels decide more than which pairs are positive.
LABELS_DECIDE = {*KINDS, "margin", "triplet", "hierarchical_ap", "recall_at_k"}
BLOCKS = [
    ("one batch", 3, False),
    ("gallery holds the batch and more", 1, True),
    ("one batch", 3, True),
    ("gallery holds the batch and more", 3, False),
]


@pytest.mark.parametrize(
    "recipe, case, block_rows, jit",
    [
        (recipe, *blocks)
        if blocks == BLOCKS[0] or (blocks == BLOCKS[1] and recipe.name == "smooth_ap")
        else slow(recipe, *blocks)
        for recipe in ONE_OF_EACH_KIND
        for blocks in BLOCKS
    ],
    ids=str,
)
def test_blocks_of_rows_do_not_change_the_result(monkeypatch, recipe, case, block_rows, jit):
    """Eleven queries in blocks of three: the last block is ragged."""
    score, core = recipe.loss().score, CORES[case]
    in_one_block = values_and_gradients(score, core, recipe)
    gallery_size = len(core[2])
    monkeypatch.setattr(rows, "BLOCK_SIMILARITIES", block_rows * gallery_size)
    in_blocks = tf.function(score, jit_compile=True) if jit else score
    assert_same(values_and_gradients(in_blocks, core, recipe), in_one_block)


@one_loss_of_each_kind
def test_the_same_hyper_parameters_are_compiled_once(recipe):
    recipe.loss()(LABELS, embeddings())
    compiled = rows._compiled.cache_info().currsize, rows._scoring.cache_info().currsize
    again = recipe.loss()
    again(LABELS, embeddings())
    type(again).from_config(again.get_config())(LABELS, embeddings())
    assert (rows._compiled.cache_info().currsize, rows._scoring.cache_info().currsize) == compiled


def test_many_losses_give_no_warning_of_tracing(caplog, monkeypatch):
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    rows._compiled.cache_clear()
    rows._scoring.cache_clear()
    for name in (*KINDS, "pnp", "circle", "rll", "fast_ap", "triplet"):
        losses.get(name)(LABELS, embeddings())
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.name in LABELS_DECIDE], ids=str)
def test_batches_with_other_labels_compile_once(recipe):
    loss = recipe.loss()
    compiled = tf.function(lambda *batch: value_and_gradient(loss, *batch), jit_compile=True)
    programs = set()
    for number in (0, 9):
        labels = tf.constant(np.random.default_rng(number).integers(0, number + 1, len(LABELS)))
        rows = tf.constant(embeddings())
        # XLA compiles again where its program differs, say because a label decides a shape. Metadata, and the
        # names of operations and their order, which may differ from call to call, are no part of the program.
        program = compiled.experimental_get_compiler_ir(labels, rows)(stage="hlo")
        operations = re.sub(r", metadata=\{[^}]*\}|%?[A-Za-z_][\w-]*\.\d+", "", program)
        programs.add(tuple(sorted(operations.splitlines())))
        # Long constants are left out of the text: labels or rows may not be among them. The step of draws is
        # one more input.
        assert re.search(r"\{\(s64\[11\]\{0\}, f64\[11,3\]\{1,0\}(, s64\[\])?\)->", program)
        for got, wanted in zip(compiled(labels, rows), value_and_gradient(loss, labels, rows)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    assert compiled.experimental_get_tracing_count() == 1
    assert len(programs) == 1


@one_loss_of_each_kind
def test_a_function_of_unknown_batch_size_is_traced_once(recipe):
    loss = recipe.loss()
    signature = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 3], tf.float64)]
    traced = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature)
    for size in [len(LABELS), 8]:
        batch = tf.constant(LABELS[:size], tf.int32), tf.constant(embeddings()[:size])
        for got, wanted in zip(traced(*batch), value_and_gradient(loss, *batch)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


@one_loss_of_each_kind
def test_a_persistent_tape_may_stand_around_a_function_that_calls_the_loss(recipe):
    """Such a tape differentiates the backward pass too, and XLA cannot compile that of a block."""
    loss, batch = recipe.loss(), tf.constant(embeddings())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(batch)
        value = tf.function(lambda rows: loss(LABELS, rows))(batch)
    _, gradient = value_and_gradient(loss, LABELS, batch)
    np.testing.assert_allclose(tape.gradient(value, batch), gradient, atol=1e-12)


@pytest.mark.parametrize("mode", ["eager", slow("graph"), "function under tapes"])
@one_loss_of_each_kind
def test_a_second_derivative_is_refused_or_right(recipe, mode):
    """Only `lifted_structure` has one."""
    loss, batch = recipe.loss(), tf.constant(embeddings())
    value = tf.function(loss) if mode == "function under tapes" else loss

    def second_derivative(batch):
        with tf.GradientTape() as outer:
            outer.watch(batch)
            _, gradient = value_and_gradient(value, LABELS, batch)
            total = tf.reduce_sum(gradient**3)
        return outer.gradient(total, batch)

    compute = tf.function(second_derivative) if mode == "graph" else second_derivative
    if recipe.name != "lifted_structure":
        with pytest.raises(InputError, match="have first derivatives only"):
            compute(batch)
        return

    def total(batch):
        return tf.reduce_sum(value_and_gradient(loss, LABELS, batch)[1] ** 3)

    slopes = tf.test.compute_gradient(total, [batch], delta=1e-5)[1][0]
    np.testing.assert_allclose(compute(batch), slopes.reshape(batch.shape), atol=1e-6)
