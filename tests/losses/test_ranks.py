"""Soft ranks: penalties, the rectangular core, blocks; each beside a twin that autodiff differentiates."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import LABELS, embeddings, every_loss
from tfrank.losses import ranks
from tfrank.losses.pnp import VARIANTS, penalty
from tfrank.losses.ranks import mean_rank_penalty


def twin_of_mean_rank_penalty(
    penalty, query_labels, queries, gallery_labels, gallery, self_index, *, temperature, include_self
):
    """`mean_rank_penalty` over all triplets [queries, positive, other] at once, no gradient written."""
    columns = tf.range(len(gallery_labels))
    own = columns == tf.constant(self_index)[:, None]
    same = tf.constant(gallery_labels) == tf.constant(query_labels)[:, None]
    counts = tf.reduce_any(same & ~own, axis=1)
    positive = (same if include_self else same & ~own) & counts[:, None]
    s = tf.matmul(queries, gallery, transpose_b=True)
    before = tf.sigmoid((s[:, None, :] - s[:, :, None]) / temperature)
    other_positive = positive[:, None, :] & (columns[:, None] != columns)
    negatives_before = tf.reduce_sum(tf.where(same[:, None, :], tf.zeros_like(before), before), 2)
    positives_before = tf.reduce_sum(tf.where(other_positive, before, tf.zeros_like(before)), 2)
    terms = tf.where(positive, penalty(negatives_before, positives_before), tf.zeros_like(s))
    numbers = tf.maximum(tf.reduce_sum(tf.cast(positive, s.dtype), axis=1), 1)
    return tf.reduce_sum(terms, axis=1) / numbers, counts


# Penalties of one and of two counts, neither of them a loss's own.
def on_negatives(R, P=None):
    return R**2 / (1 + R)


def on_both(R, P):
    return R * (2 + P) / (1 + P * P + R)


# (query labels, queries, gallery labels, gallery, self_index), embeddings as float64 rows.
ROWS, MORE = embeddings(), embeddings(seed=1)
ALL = np.arange(len(LABELS), dtype=np.int32)
CORES = {
    "one batch": (LABELS, ROWS, LABELS, ROWS, ALL),
    "part of the batch against the batch": (LABELS[4:9], ROWS[4:9], LABELS, ROWS, ALL[4:9]),
    "gallery holds the batch and more": (
        LABELS,
        ROWS,
        np.concatenate([LABELS[:5], LABELS]),
        np.concatenate([MORE[:5], ROWS]),
        ALL + 5,
    ),
    "no query in the gallery": (LABELS, ROWS, LABELS[::-1], MORE, np.full_like(ALL, -1)),
    "some queries in the gallery": (LABELS, ROWS, LABELS[:6], ROWS[:6], np.where(ALL < 6, ALL, -1)),
    "labels the gallery lacks": (LABELS * 2 - 3, ROWS, LABELS, MORE, np.full_like(ALL, -1)),
    "one row in the gallery": (LABELS, ROWS, LABELS[:1], MORE[:1], np.full_like(ALL, -1)),
}
every_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


def tensors(core):
    """As tensors; embeddings that are the gallery's are the very same tensor, as in the losses."""
    query_labels, queries, gallery_labels, gallery, self_index = core
    queries_tensor = tf.constant(queries)
    gallery_tensor = queries_tensor if gallery is queries else tf.constant(gallery)
    return (
        *(tf.constant(query_labels), queries_tensor),
        *(tf.constant(gallery_labels), gallery_tensor, tf.constant(self_index)),
    )


def values_and_gradients(function, core):
    """Losses, counts, and the gradients of a sum of the losses with unequal weights."""
    arguments = tensors(core)
    with tf.GradientTape() as tape:
        tape.watch(arguments[1])
        tape.watch(arguments[3])
        values, counts = function(*arguments)
    weights = tf.linspace(tf.constant(1.0, tf.float64), 2, values.shape[0])
    return values, counts, *tape.gradient(values, [arguments[1], arguments[3]], weights)


def assert_same(got, wanted):
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("penalty", [on_negatives, on_both])
@every_core
def test_value_and_gradients_are_those_of_the_autodiff_twin(core, penalty, include_self):
    options = {"temperature": 0.1, "include_self": include_self}
    among_positives = penalty is on_both
    got = values_and_gradients(
        lambda *core: mean_rank_penalty(penalty, *core, **options, among_positives=among_positives),
        core,
    )
    wanted = values_and_gradients(lambda *core: twin_of_mean_rank_penalty(penalty, *core, **options), core)
    assert_same(got, wanted)


@pytest.mark.parametrize("case", ["one batch", "gallery holds the batch and more"])
def test_gradient_is_the_slope(case):
    query_labels, queries, gallery_labels, gallery, self_index = tensors(CORES[case])

    def losses(queries, gallery):
        core = (query_labels, queries, gallery_labels, gallery, self_index)
        options = {"temperature": 0.1, "include_self": False, "among_positives": True}
        return mean_rank_penalty(on_both, *core, **options)[0]

    if queries is gallery:
        results = tf.test.compute_gradient(lambda rows: losses(rows, rows), [queries], delta=1e-5)
    else:
        results = tf.test.compute_gradient(losses, [queries, gallery], delta=1e-5)
    for got, slopes in zip(*results):
        np.testing.assert_allclose(got, slopes, atol=1e-6)


@every_core
@every_loss
def test_rectangular_core_of_every_loss_is_the_papers(recipe, core):
    query_labels, queries, gallery_labels, gallery, self_index = core
    unit = (reference.unit(queries), reference.unit(gallery))
    core = (query_labels, unit[0], gallery_labels, unit[1], self_index)
    values, counts = recipe.loss().score(*tensors(core))
    wanted, wanted_counts = recipe.oracle(*core)
    np.testing.assert_array_equal(counts, wanted_counts)
    np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-12)


def test_one_batch_given_as_two_equal_tensors_gives_the_same():
    """The very same tensor takes a shorter way through the similarity product."""

    def function(*core):
        return mean_rank_penalty(on_negatives, *core, temperature=0.1, include_self=False)

    once = values_and_gradients(function, (LABELS, ROWS, LABELS, ROWS, ALL))
    twice = values_and_gradients(function, (LABELS, ROWS, LABELS, ROWS.copy(), ALL))
    assert_same(once[:2], twice[:2])
    # The one tensor gets the gradient of both its places.
    assert_same([once[2]], [twice[2] + twice[3]])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("block_rows", [1, 3])
@pytest.mark.parametrize("case", ["one batch", "gallery holds the batch and more"])
def test_blocks_of_rows_do_not_change_the_result(monkeypatch, case, block_rows, jit):
    """Eleven queries in blocks of three: the last block is ragged."""

    def function(*core):
        options = {"temperature": 0.1, "include_self": False, "among_positives": True}
        return mean_rank_penalty(on_both, *core, **options)

    in_one_block = values_and_gradients(function, CORES[case])
    gallery_size = len(CORES[case][2])
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", block_rows * gallery_size)
    in_blocks = tf.function(function, jit_compile=True) if jit else function
    assert_same(values_and_gradients(in_blocks, CORES[case]), in_one_block)


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_penalty_is_compiled_once_for_its_hyper_parameters(variant):
    assert penalty(variant, 4.0, 4.0) is penalty(variant, 4.0, 4.0)
