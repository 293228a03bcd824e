"""Rows and columns of nothing: few programs for many batch sizes, and the same results."""

import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses import LABELS, ONE_OF_EACH_KIND, value_and_gradient
from tests.losses.core.cores import CORES, assert_same, eagerly, fresh_functions, values_and_gradients
from tests.losses.core.memory_run import batch_of
from tfrank import losses
from tfrank.losses.core import padding, rows


@pytest.fixture
def counted_shapes(monkeypatch):
    """A set that takes up the shape of each matrix of similarities that is given to a program."""
    shapes, compiled = set(), rows._compiled

    def recording(*arguments):
        def score(similarity, *others):
            shapes.add(tuple(similarity.shape))
            return compiled(*arguments)(similarity, *others)

        return score

    monkeypatch.setattr(rows, "_compiled", recording)
    with eagerly():
        yield shapes


@pytest.mark.slow
def test_two_hundred_batch_sizes_are_thirteen_to_the_compiler(counted_shapes):
    for size in range(2, 202):
        losses.get("contrastive")(*batch_of(size))
    assert counted_shapes == {(size, size) for size in padding.SIZES[:13]}


@pytest.mark.parametrize(
    "recipe, case",
    [
        slow(recipe, case) if case == "one batch" else (recipe, case)
        for recipe in ONE_OF_EACH_KIND
        for case in ("one batch", "gallery holds the batch and more", "labels the gallery lacks")
    ],
    ids=str,
)
def test_padding_changes_neither_value_nor_gradient(monkeypatch, recipe, case):
    """Eleven queries, and eleven or sixteen rows in the gallery."""
    padded = values_and_gradients(recipe.loss().score, CORES[case], recipe)
    monkeypatch.setattr(padding, "missing", lambda number: 0)
    with fresh_functions():
        assert_same(padded, values_and_gradients(recipe.loss().score, CORES[case], recipe))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ONE_OF_EACH_KIND, ids=str)
def test_what_xla_compiles_around_a_loss_may_leave_the_batch_size_open(recipe):
    loss = recipe.loss()
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3], tf.float64)]
    compiled = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature, jit_compile=True)
    for size in (len(LABELS), 8):
        batch = tf.constant(LABELS[:size], tf.int64), tf.constant(CORES["one batch"][1][:size])
        assert_same(compiled(*batch), value_and_gradient(loss, *batch))


def test_usual_sizes_are_not_padded_and_the_others_by_a_sixteenth_at_most():
    multiples = [48, 96, 112, 192, 224, 240, 336, 384, 480, 672, 960, 1344]
    usual = [*(2**power for power in range(4, 21)), *multiples]
    assert not any(int(padding.missing(size)) for size in usual)
    # XLA compiles no program for a batch without rows.
    assert int(padding.missing(0)) == 16
    for size in range(1, 3000):
        missing = int(padding.missing(size))
        assert size + missing in padding.SIZES and 0 <= missing <= max(15, size / 16)
