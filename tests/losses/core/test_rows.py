"""Rows of similarities scored by a kernel: every loss' kernel beside a twin that autodiff differentiates."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import JUMPS_AT_TIES, LABELS, Recipe, embeddings, every_loss, value_and_gradient
from tests.losses.twins import DEFINED_SLOPES, TWINS, mean_penalty, sigmoid_step
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses.core import ranks, rows
from tfrank.losses.pnp import VARIANTS, penalty

# Every loss, at settings under which many pairs have gradient.
SOFT = [
    Recipe("pnp", {"variant": "ib", "temperature": 0.1, "include_self": True}),
    Recipe("smooth_ap", {"temperature": 0.1}),
    Recipe("smooth_ap", {"temperature": 0.1, "include_self": True}),
    Recipe("map_q", {"num_bins": 5}),
    Recipe("map_q", {"num_bins": 7, "tie_aware": True, "include_self": True}),
    Recipe("fast_ap", {"num_bins": 3}),
    Recipe("rll", {"negative_temperature": 2.0, "positive_temperature": -1.0}),
    Recipe("rll", {"negative_temperature": 2.0, "positive_temperature": 3.0, "constant_gallery": False}),
    Recipe("blackbox_ap", {"interpolation": 0.5}),
    # Of three positives and more the first sum is past k = 1, where it is cut off.
    Recipe("recall_at_k", {"ks": (1, 3), "k_temperatures": (4.0, 2.0), "temperature": 0.1}),
    Recipe("sup_ap", {"temperature": 0.1, "rho": 10.0, "delta": 0.2}),
    Recipe("sup_ap", {"temperature": 0.1, "rho": 10.0, "delta": 0.2, "include_self": True}),
    *(Recipe("triplet", {"margin": 1.0, "mining": mining}) for mining in ("semi_hard", "hard", "all")),
    Recipe("triplet", {"margin": 1.0, "mining": "hard", "hardest": 4}),
    Recipe("contrastive", {"margin": 1.5}),
    Recipe("n_pairs", {"normalize": False}),
    Recipe("n_pairs", {"normalize": True}),
    Recipe("lifted_structure", {"normalize": False}),
    Recipe("lifted_structure", {"normalize": True, "squared": True}),
    Recipe("multi_similarity", {"alpha": 2.0, "beta": 3.0, "threshold": 0.0, "epsilon": 0.5}),
    Recipe("circle", {"gamma": 2.0}),
    Recipe("margin", {"sampled": False, "margin": 0.8, "nonzero_cutoff": 1.9}),
    Recipe("margin", {"sampled": True, "margin": 0.8, "nonzero_cutoff": 1.9}),
    Recipe("histogram", {"num_bins": 7}),
]

every_soft_loss = pytest.mark.parametrize("recipe", SOFT, ids=str)

ALL = np.arange(len(LABELS), dtype=np.int32)


def cores(ties):
    """By name: query labels, queries, gallery labels, gallery, self_index; float64 rows of any norm."""
    batch, more = embeddings(ties=ties), embeddings(seed=1, ties=ties)
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


CORES = {ties: cores(ties) for ties in (False, True)}
every_core = pytest.mark.parametrize("case", CORES[True])


def core_of(recipe, case):
    return CORES[recipe.name not in JUMPS_AT_TIES][case]


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


# Values and gradients.


@every_core
@every_loss
def test_rectangular_core_of_every_loss_is_the_papers(recipe, case):
    query_labels, queries, gallery_labels, gallery, self_index = core_of(recipe, case)
    if recipe.normalizes:
        queries, gallery = reference.unit(queries), reference.unit(gallery)
    core = (query_labels, queries, gallery_labels, gallery, self_index)
    values, valid = recipe.loss().score(*tensors(core))
    wanted, wanted_valid = recipe.oracle(*core)
    np.testing.assert_array_equal(valid, wanted_valid)
    np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-12)


def test_every_loss_has_a_twin_and_soft_settings():
    assert set(TWINS) == set(losses.LOSSES) == {recipe.name for recipe in SOFT}


@every_core
@every_soft_loss
def test_value_and_gradients_are_those_of_the_autodiff_twin(recipe, case):
    def twin(*core):
        return TWINS[recipe.name](*core, **recipe.settings)

    core = core_of(recipe, case)
    got = values_and_gradients(recipe.loss().score, core, recipe)
    assert_same(got, values_and_gradients(twin, core, recipe))


# Penalties of one and of two counts, neither of them a loss's own.
def on_negatives(R, P=None):
    return R**2 / (1 + R)


def on_both(R, P):
    return R * (2 + P) / (1 + P * P + R)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("penalty", [on_negatives, on_both])
@every_core
def test_any_penalty_of_ranks_is_differentiated_as_by_the_autodiff_twin(case, penalty, include_self):
    """With another step for the positives than for the negatives."""
    positive_step = ranks.sigmoid_step(0.3) if penalty is on_both else None
    kernel = ranks.penalty_kernel(penalty, ranks.sigmoid_step(0.1), positive_step)

    def function(*core):
        return rows.score_rows(kernel, *core, include_self=include_self)

    def twin(*core):
        return mean_penalty(penalty, sigmoid_step(0.1), sigmoid_step(0.3), *core, include_self=include_self)

    core = CORES[True][case]
    assert_same(values_and_gradients(function, core), values_and_gradients(twin, core))


# RLL's weights are constants to the gradient: it is the slope where they are constant.
SMOOTH = [recipe for recipe in SOFT if recipe.name not in DEFINED_SLOPES] + [
    Recipe("rll", {"negative_temperature": 0.0, "constant_gallery": constant}) for constant in (False, True)
]


@pytest.mark.parametrize("case", ["one batch", "some queries in the gallery"])
@pytest.mark.parametrize("recipe", SMOOTH, ids=str)
def test_gradient_is_the_slope(recipe, case):
    query_labels, queries, gallery_labels, gallery, self_index = tensors(CORES[False][case])

    def score(queries, gallery):
        seen, seen_gallery = rows_for(recipe, queries, gallery)
        return recipe.loss().score(query_labels, seen, gallery_labels, seen_gallery, self_index)[0]

    if recipe.settings.get("constant_gallery"):
        results = tf.test.compute_gradient(lambda moved: score(moved, gallery), [queries], delta=1e-5)
    elif queries is gallery:
        results = tf.test.compute_gradient(lambda moved: score(moved, moved), [queries], delta=1e-5)
    else:
        results = tf.test.compute_gradient(score, [queries, gallery], delta=1e-5)
    for got, slopes in zip(*results, strict=True):
        np.testing.assert_allclose(got, slopes, atol=1e-6)


@every_soft_loss
def test_one_batch_given_as_two_equal_tensors_gives_the_same(recipe):
    """The very same tensor takes a shorter way through the similarity product."""
    batch = embeddings(ties=False)
    once = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch, ALL), recipe)
    twice = values_and_gradients(recipe.loss().score, (LABELS, batch, LABELS, batch.copy(), ALL), recipe)
    assert_same(once[:2], twice[:2])
    # The one tensor gets the gradient of both its places, here under each name.
    assert_same(once[2:], [twice[2] + twice[3]] * 2)


def test_a_constant_gallery_gets_no_gradient_and_leaves_the_query_its_own():
    kernel = ranks.penalty_kernel(on_negatives, ranks.sigmoid_step(0.1))

    def function(constant_gallery):
        return lambda *core: rows.score_rows(kernel, *core, constant_gallery=constant_gallery)

    core = CORES[True]["gallery holds the batch and more"]
    free, constant = (values_and_gradients(function(constant), core) for constant in (False, True))
    assert_same(constant[:3], free[:3])
    assert np.any(free[3]) and not np.any(constant[3])
    # Of one batch only the queries' side is left.
    batch = values_and_gradients(function(True), CORES[True]["one batch"])
    query_labels, queries, gallery_labels, gallery, self_index = CORES[True]["one batch"]
    apart = values_and_gradients(
        function(False), (query_labels, queries, gallery_labels, gallery.copy(), self_index)
    )
    assert_same(batch[:3], apart[:3])


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k"])
def test_absent_rows_are_as_if_they_were_not_in_the_gallery(name):
    """Rows of no query's class, the nearest that there can be: copies of the queries."""
    kernel, *numbers = {
        "smooth_ap": [ranks.penalty_kernel(on_both, ranks.sigmoid_step(0.1), ranks.sigmoid_step(0.1))],
        "recall_at_k": [losses.recall_at_k._kernel((1, 3)), 0.1, (0.5, 2.0)],
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


@pytest.mark.parametrize(
    "case, block_rows, jit",
    [
        ("one batch", 3, False),
        ("one batch", 3, True),
        ("gallery holds the batch and more", 1, True),
        ("gallery holds the batch and more", 3, False),
    ],
)
@every_soft_loss
def test_blocks_of_rows_do_not_change_the_result(monkeypatch, recipe, case, block_rows, jit):
    """Eleven queries in blocks of three: the last block is ragged."""
    score, core = recipe.loss().score, CORES[False][case]
    in_one_block = values_and_gradients(score, core, recipe)
    gallery_size = len(core[2])
    monkeypatch.setattr(rows, "BLOCK_SIMILARITIES", block_rows * gallery_size)
    in_blocks = tf.function(score, jit_compile=True) if jit else score
    assert_same(values_and_gradients(in_blocks, core, recipe), in_one_block)


@every_loss
def test_the_same_hyper_parameters_are_compiled_once(recipe):
    recipe.loss()(LABELS, recipe.embeddings())
    compiled = rows._compiled.cache_info().currsize
    again = recipe.loss()
    again(LABELS, recipe.embeddings())
    type(again).from_config(again.get_config())(LABELS, recipe.embeddings())
    assert rows._compiled.cache_info().currsize == compiled


@every_loss
def test_ten_batches_with_other_labels_compile_once(recipe):
    loss = recipe.loss()
    compiled = tf.function(lambda *batch: value_and_gradient(loss, *batch), jit_compile=True)
    programs = set()
    for number in range(10):
        labels = tf.constant(np.random.default_rng(number).integers(0, number + 1, len(LABELS)))
        rows = tf.constant(recipe.embeddings())
        # XLA compiles again where its program differs, say because a label decides a shape; what it
        # notes about where an operation comes from is no part of the program.
        program = compiled.experimental_get_compiler_ir(labels, rows)(stage="hlo")
        programs.add(re.sub(r", metadata=\{[^}]*\}", "", program))
        # Long constants are left out of the text: labels or rows may not be among them.
        assert "{(s64[11]{0}, f64[11,3]{1,0})->" in program
        for got, wanted in zip(compiled(labels, rows), value_and_gradient(loss, labels, rows)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    assert compiled.experimental_get_tracing_count() == 1
    assert len(programs) == 1


@every_loss
def test_a_function_of_unknown_batch_size_is_traced_once(recipe):
    loss = recipe.loss()
    signature = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 3], tf.float64)]
    traced = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature)
    for size in [len(LABELS), 8]:
        batch = tf.constant(LABELS[:size], tf.int32), tf.constant(recipe.embeddings()[:size])
        for got, wanted in zip(traced(*batch), value_and_gradient(loss, *batch)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


@every_soft_loss
def test_a_persistent_tape_may_stand_around_a_function_that_calls_the_loss(recipe):
    """Such a tape differentiates the backward pass too, and XLA cannot compile that of a block."""
    loss, batch = recipe.loss(), tf.constant(recipe.embeddings())
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(batch)
        value = tf.function(lambda rows: loss(LABELS, rows))(batch)
    _, gradient = value_and_gradient(loss, LABELS, batch)
    np.testing.assert_allclose(tape.gradient(value, batch), gradient, atol=1e-12)


@pytest.mark.parametrize("mode", ["eager", "graph", "function under tapes"])
@every_loss
def test_a_second_derivative_is_refused_where_it_would_be_wrong(recipe, mode):
    loss, batch = recipe.loss(), tf.constant(embeddings(ties=False))
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
    batch = recipe.embeddings().copy()
    batch[3, 1] = np.nan
    assert np.isnan(recipe.loss()(LABELS, batch))


@every_loss
def test_an_empty_batch_gives_zero(recipe):
    batch = tf.zeros([0, 3])
    value, gradient = value_and_gradient(recipe.loss(), tf.zeros([0], tf.int32), batch)
    assert value == 0 and gradient.shape == [0, 3]
