"""Rows of similarities scored by a kernel: values and gradients of every loss for any queries and gallery."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import (
    KINDS,
    LABELS,
    SOFT_RECIPES,
    embeddings,
    every_loss,
    one_loss_of_each_kind,
    slow_but_kinds,
    value_and_gradient,
)
from tests.reference.common import mean_over_positives
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.core import ranks, rows
from tfrank.losses.pnp import VARIANTS, penalty

ALL = np.arange(len(LABELS), dtype=np.int32)


def cores():
    """By name: query labels, queries, gallery labels, gallery, self_index; float64 rows of any norm."""
    batch, more = embeddings(), embeddings(seed=1)
    return {
        "one batch": (LABELS, batch, LABELS, batch, ALL),
        "part of the batch against the batch": (LABELS[4:9], batch[4:9], LABELS, batch, ALL[4:9]),
        "gallery holds the batch and more": (
            LABELS,
            batch,
            np.concatenate([LABELS[:5], LABELS]),
            np.concatenate([more[:5], batch]),
            ALL + 5,
        ),
        "no query in the gallery": (LABELS, batch, LABELS[::-1], more, np.full_like(ALL, -1)),
        "some queries in the gallery": (LABELS, batch, LABELS[:6], batch[:6], np.where(ALL < 6, ALL, -1)),
        "labels the gallery lacks": (LABELS * 2 - 3, batch, LABELS, more, np.full_like(ALL, -1)),
        "one row in the gallery": (LABELS, batch, LABELS[:1], more[:1], np.full_like(ALL, -1)),
        "a gallery of one class": (LABELS, batch, np.full(4, 3), more[:4], np.full_like(ALL, -1)),
    }


CORES = cores()
every_core = pytest.mark.parametrize("case", CORES)


def tensors(core):
    """As tensors; embeddings that are the gallery's are the very same tensor, as in the losses."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    queries_tensor = tf.constant(queries)
    gallery_tensor = queries_tensor if gallery is queries else tf.constant(gallery)
    return (
        *(tf.constant(query_labels), queries_tensor),
        *(tf.constant(gallery_labels), gallery_tensor, tf.constant(self_index)),
    )


def rows_for(recipe, queries, gallery):
    """The rows that the core of a loss sees, the very same tensor where queries are the gallery."""
    if recipe is not None and not recipe.normalizes:
        return queries, gallery
    unit = tf.math.l2_normalize(queries, axis=1)
    return unit, unit if gallery is queries else tf.math.l2_normalize(gallery, axis=1)


def values_and_gradients(function, core, recipe=None):
    """Losses, valid queries, and the gradients of a sum of the losses with unequal weights.

    The function sees rows divided by their norms, unless it is of a loss that takes them as they are.
    """
    query_labels, queries, gallery_labels, gallery, self_index = tensors(core)
    with tf.GradientTape() as tape:
        tape.watch([queries, gallery])
        seen, seen_gallery = rows_for(recipe, queries, gallery)
        values, valid = function(query_labels, seen, gallery_labels, seen_gallery, self_index)
    weights = tf.linspace(tf.constant(1.0, tf.float64), 2, values.shape[0])
    gradients = tape.gradient(values, [queries, gallery], weights, unconnected_gradients="zero")
    return values, valid, *gradients


def assert_same(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def assert_gradients_are_slopes(function, core, recipe=None):
    """Along random directions of all queries and gallery rows, by central differences."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    _, _, of_queries, of_gallery = values_and_gradients(function, core, recipe)
    weights = np.linspace(1, 2, len(queries))
    for seed in range(3):
        random = np.random.default_rng(seed)
        move, gallery_move = random.normal(size=queries.shape), random.normal(size=gallery.shape)
        sums = []
        for step in (1e-6, -1e-6):
            moved = queries + step * move
            moved_gallery = moved if gallery is queries else gallery + step * gallery_move
            pairs = (query_labels, moved, gallery_labels, moved_gallery, self_index)
            sums.append(np.sum(weights * values_and_gradients(function, pairs, recipe)[0]))
        along = np.sum(of_queries * move) + (gallery is not queries) * np.sum(of_gallery * gallery_move)
        np.testing.assert_allclose(along, (sums[0] - sums[1]) / 2e-6, rtol=1e-5, atol=1e-6)


# Values and gradients.


def marked(recipe, case):
    quick = case in ("one batch", "gallery holds the batch and more")
    return pytest.param(recipe, case, marks=() if quick else slow_but_kinds(recipe), id=f"{recipe}-{case}")


@pytest.mark.parametrize("recipe, case", [marked(recipe, case) for recipe in SOFT_RECIPES for case in CORES])
def test_values_and_gradients_of_every_loss_are_the_papers(recipe, case):
    """The gradient is the slope of the value, unless the paper defines another."""
    query_labels, queries, gallery_labels, gallery, self_index = core = CORES[case]
    if recipe.normalizes:
        queries, gallery = reference.unit(queries), reference.unit(gallery)
    wanted, wanted_valid = recipe.oracle(query_labels, queries, gallery_labels, gallery, self_index)
    values, valid, *gradients = values_and_gradients(recipe.loss().score, core, recipe)
    np.testing.assert_array_equal(valid, wanted_valid)
    np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-12)
    if recipe.name in reference.DEFINED_SLOPES:
        assert_same(gradients, recipe.gradients(core, np.linspace(1, 2, len(queries))))
    else:
        assert_gradients_are_slopes(recipe.loss().score, core, recipe)


# Penalties of one and of two counts, neither of them a loss's own.
def on_negatives(R, P=None):
    return R**2 / (1 + R)


def on_both(R, P):
    return R * (2 + P) / (1 + P * P + R)


@pytest.mark.parametrize("include_self", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("penalty", [pytest.param(on_negatives, marks=pytest.mark.slow), on_both])
@every_core
def test_any_penalty_of_ranks_is_differentiated(case, penalty, include_self):
    step = ranks.sigmoid_step(0.1)
    kernel = ranks.penalty_kernel(penalty, step, step if penalty is on_both else None)

    def function(*core):
        return rows.score_rows(kernel, *core, include_self=include_self)

    core = CORES[case]
    wanted = mean_over_positives(penalty, *core, temperature=0.1, include_self=include_self)
    assert_same(values_and_gradients(function, core)[:2], wanted)
    assert_gradients_are_slopes(function, core)


@one_loss_of_each_kind
def test_one_batch_given_as_two_equal_tensors_gives_the_same(recipe):
    """The very same tensor takes a shorter way through the similarity product."""
    batch = embeddings()
    once = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch, ALL), recipe)
    twice = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch.copy(), ALL), recipe)
    assert_same(once[:2], twice[:2])
    # The one tensor gets the gradient of both its places, here under each name.
    assert_same(once[2:], [twice[2] + twice[3]] * 2)


def test_queries_and_a_gallery_of_two_dtypes_are_compared_in_float64():
    """Rows of the identity are the same in both."""
    got, wanted = (
        losses.ContrastiveLoss().score(LABELS, embeddings(), LABELS, gallery, np.full_like(ALL, -1))
        for gallery in (np.eye(3, dtype="float32")[ALL % 3], np.eye(3)[ALL % 3])
    )
    assert_same(got, wanted)


def test_a_constant_gallery_gets_no_gradient_and_leaves_the_query_its_own():
    kernel = ranks.penalty_kernel(on_negatives, ranks.sigmoid_step(0.1))

    def function(constant_gallery):
        return lambda *core: rows.score_rows(kernel, *core, constant_gallery=constant_gallery)

    core = CORES["gallery holds the batch and more"]
    free, constant = (values_and_gradients(function(constant), core) for constant in (False, True))
    assert_same(constant[:3], free[:3])
    assert np.any(free[3]) and not np.any(constant[3])
    # Of one batch only the queries' side is left.
    batch = values_and_gradients(function(True), CORES["one batch"])
    query_labels, queries, gallery_labels, gallery, self_index = CORES["one batch"]
    apart = values_and_gradients(
        function(False), (query_labels, queries, gallery_labels, gallery.copy(), self_index)
    )
    assert_same(batch[:3], apart[:3])


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k"])
def test_absent_rows_are_as_if_they_were_not_in_the_gallery(name):
    """Rows of no query's class, the nearest that there can be: copies of the queries."""
    kernel, *numbers = {
        "smooth_ap": [ranks.penalty_kernel(on_both, ranks.sigmoid_step(0.1), ranks.sigmoid_step(0.1))],
        "recall_at_k": [losses.recall_at_k._kernel((1, 3), False), 0.1, (0.5, 2.0)],
    }[name]
    batch = embeddings()
    present = np.arange(2 * len(LABELS)) % 2 == 0
    gallery_labels = np.where(present, np.repeat(LABELS, 2), 99)
    core = (LABELS, batch, gallery_labels, np.repeat(batch, 2, axis=0), 2 * ALL)
    masked = values_and_gradients(
        lambda *core: rows.score_rows(kernel, *core, *numbers, present=tf.constant(present)), core
    )
    without = values_and_gradients(
        lambda *core: rows.score_rows(kernel, *core, *numbers), (LABELS, batch, LABELS, batch.copy(), ALL)
    )
    assert_same(masked[:3], without[:3])
    np.testing.assert_allclose(masked[3][present], without[3], atol=1e-10)
    assert not np.any(masked[3][~present])


# Blocks, graphs and compilation.


BLOCKS = [
    ("one batch", 3, True),
    ("gallery holds the batch and more", 1, True),
    ("gallery holds the batch and more", 3, False),
]
ONE_OF_EACH_KIND = [next(recipe for recipe in SOFT_RECIPES if recipe.name == name) for name in KINDS]


@pytest.mark.parametrize(
    "recipe, case, block_rows, jit",
    [
        pytest.param(recipe, *blocks, marks=() if recipe in ONE_OF_EACH_KIND else pytest.mark.slow)
        for recipe in SOFT_RECIPES
        for blocks in [("one batch", 3, False), *(BLOCKS if recipe.name in KINDS else [])]
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


@every_loss
def test_the_same_hyper_parameters_are_compiled_once(recipe):
    recipe.loss()(LABELS, embeddings())
    compiled = rows._compiled.cache_info().currsize
    again = recipe.loss()
    again(LABELS, embeddings())
    type(again).from_config(again.get_config())(LABELS, embeddings())
    assert rows._compiled.cache_info().currsize == compiled


def test_many_losses_give_no_warning_of_tracing(caplog, monkeypatch):
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    rows._compiled.cache_clear()
    for name in (*KINDS, "pnp", "circle", "rll", "fast_ap", "triplet"):
        losses.get(name)(LABELS, embeddings())
    assert not caplog.records


@pytest.mark.slow
@every_loss
def test_batches_with_other_labels_compile_once(recipe):
    loss = recipe.loss()
    compiled = tf.function(lambda *batch: value_and_gradient(loss, *batch), jit_compile=True)
    programs = set()
    for number in (0, 3, 9):
        labels = tf.constant(np.random.default_rng(number).integers(0, number + 1, len(LABELS)))
        rows = tf.constant(embeddings())
        # XLA compiles again where its program differs, say because a label decides a shape. Metadata, and the
        # names of operations and their order, which may differ from call to call, are no part of the program.
        program = compiled.experimental_get_compiler_ir(labels, rows)(stage="hlo")
        operations = re.sub(r", metadata=\{[^}]*\}|%?[A-Za-z_][\w-]*\.\d+", "", program)
        programs.add(tuple(sorted(operations.splitlines())))
        # Long constants are left out of the text: labels or rows may not be among them.
        assert "{(s64[11]{0}, f64[11,3]{1,0})->" in program
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


@pytest.mark.parametrize("mode", ["eager", "graph", "function under tapes"])
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


# Slopes of PNP.

# f'(R) as the paper derives it. Of eq. 7 it says log(1 + R) in eq. 6; eq. 7 has 1 more.
SLOPES = {
    "o": lambda R: np.ones_like(R),
    "iu": lambda R: 1 + np.log(1 + R),
    "ib": lambda R: R / (1 + 4 * R),  # eq. 8
    "ds": lambda R: 1 / (1 + R),  # eq. 10
    "dq": lambda R: 4 / (1 + R) ** 5,  # eq. 11
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_slope_of_pnp_is_the_papers(variant):
    R = tf.constant(np.linspace(0, 50, 101))
    with tf.GradientTape() as tape:
        tape.watch(R)
        value = penalty(variant, alpha=4.0, b=4.0)(R)
    np.testing.assert_allclose(tape.gradient(value, R), SLOPES[variant](R.numpy()), atol=1e-12)
    assert value[0] == 0


@every_loss
def test_a_nan_in_an_embedding_is_a_nan_in_the_loss(recipe):
    batch = embeddings().copy()
    batch[3, 1] = np.nan
    assert np.isnan(recipe.loss()(LABELS, batch))


@one_loss_of_each_kind
def test_a_nan_in_the_gallery_is_a_nan_in_the_loss_of_every_valid_query(recipe):
    gallery = embeddings(seed=1).copy()
    gallery[3, 1] = np.nan
    values, valid = recipe.loss().score(LABELS, embeddings(), LABELS, gallery, np.full_like(ALL, -1))
    assert np.all(np.isnan(values[valid]))


@one_loss_of_each_kind
def test_an_empty_batch_gives_zero(recipe):
    batch = tf.zeros([0, 3])
    value, gradient = value_and_gradient(recipe.loss(), tf.zeros([0], tf.int32), batch)
    assert value == 0 and gradient.shape == [0, 3]
