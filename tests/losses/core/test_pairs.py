"""Losses of pairs beyond the contract of all losses: what is mined, weighed, drawn and shared."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import LABELS, embeddings, value_and_gradient
from tfrank.common.checks import InputError
from tfrank.losses import CircleLoss, HistogramLoss, MarginLoss, MultiSimilarityLoss
from tfrank.losses.core.log_sum_exp import log_sum_exp

BALANCED = np.arange(24) % 6
ROWS = np.random.default_rng(0).normal(size=(24, 5))
SIMILARITIES = reference.unit(ROWS) @ reference.unit(ROWS).T
SAME = BALANCED[:, None] == BALANCED
POSITIVE_MASK = SAME & ~np.eye(24, dtype=bool)


def losses_by_query(loss, labels=BALANCED, rows=ROWS):
    """L_q of each query; of a loss that draws, at step 0."""
    if loss.iteration is None:
        loss.iteration = tf.Variable(0, dtype=tf.int64)
    return loss(labels, rows).numpy()


# Sums of exponentials.


def test_the_log_of_a_sum_of_nothing_is_minus_infinity_and_has_no_slope():
    value, shares = log_sum_exp(tf.constant([[-np.inf, -np.inf], [-np.inf, 2.0]]))
    np.testing.assert_array_equal(value, [[-np.inf], [2]])
    np.testing.assert_array_equal(shares, [[0, 0], [0, 1]])


@pytest.mark.parametrize(
    "loss", [MultiSimilarityLoss(1e6, beta=1e8), CircleLoss(gamma=1e8)], ids=lambda loss: loss.name
)
def test_sharp_exponentials_do_not_overflow(loss):
    value, gradient = value_and_gradient(loss, BALANCED, ROWS.astype("float32"))
    assert np.isfinite(value) and value > 0
    assert np.all(np.isfinite(gradient)) and np.any(gradient)


# Multi-similarity.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_epsilon_above_2_keeps_every_pair(dtype):
    """Also the positive next to the query and the negative opposite it."""
    pull = np.sum(np.exp(-2 * (SIMILARITIES - 0.5)), axis=1, where=POSITIVE_MASK)
    push = np.sum(np.exp(3 * (SIMILARITIES - 0.5)), axis=1, where=~SAME)
    by_hand = np.log1p(pull) / 2 + np.log1p(push) / 3
    loss = MultiSimilarityLoss(beta=3.0, epsilon=2.01, reduction=None)
    np.testing.assert_allclose(losses_by_query(loss, rows=ROWS.astype(dtype)), by_hand, rtol=1e-5)
    # At the default epsilon some are left out.
    assert MultiSimilarityLoss(beta=3.0)(BALANCED, ROWS) < by_hand.mean() - 1e-3


def test_pairs_at_the_boundary_are_not_mined_and_a_query_with_nothing_mined_counts():
    """Positives at similarity 1 and negatives at 0, exactly."""
    rows, labels = np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1]
    assert MultiSimilarityLoss(epsilon=1.0)(labels, rows) == 0
    mined = np.log1p(np.exp(-2 * 0.5)) / 2 + np.log1p(2 * np.exp(-50 * 0.5)) / 50
    np.testing.assert_allclose(MultiSimilarityLoss(epsilon=1.01)(labels, rows), mined, rtol=1e-12)
    # The third class stands at 0.5 and -0.5 to itself and to the others.
    rows, labels = np.vstack([np.pad(rows, [[0, 0], [0, 1]]), [[0, 0, 1], [0, 0, -1]]]), [*labels, 2, 2]
    values = MultiSimilarityLoss(epsilon=1.0, reduction=None)(labels, rows).numpy()
    assert np.all(values[:4] == 0) and np.all(values[4:] > 0)
    np.testing.assert_allclose(MultiSimilarityLoss(epsilon=1.0)(labels, rows), values.sum() / 6, rtol=1e-12)


# Circle.


def test_value_of_circle_is_that_of_keras():
    """Its gradient is another: there the weights a are no constants."""
    theirs = keras.losses.Circle(gamma=80.0, margin=0.4, dtype="float64")
    value, gradient = value_and_gradient(CircleLoss(), BALANCED, ROWS)
    rows = tf.constant(ROWS)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        their_value = theirs(BALANCED, tf.math.l2_normalize(rows, axis=1))
    np.testing.assert_allclose(value, their_value, rtol=1e-12)
    assert not np.allclose(gradient, tape.gradient(their_value, rows), rtol=0.1)


@pytest.mark.parametrize("angle", [0.3, 1.0, 1.4])
@pytest.mark.parametrize("margin", [0.1, 0.4])
def test_pairs_on_the_circle_are_at_the_boundary(angle, margin):
    """(1 - s_p)^2 + s_n^2 = 2 m^2: there one positive and one negative give log 2, whatever gamma."""
    radius = 2**0.5 * margin
    to_positive, to_negative = 1 - radius * np.cos(angle), radius * np.sin(angle)
    query = tf.constant([[1.0, 0, 0]], tf.float64)
    gallery = tf.constant([[s, (1 - s * s) ** 0.5, 0] for s in (to_positive, to_negative)], tf.float64)
    for gamma in (1.0, 80.0):
        core = (tf.constant([0]), query, tf.constant([0, 1]), gallery, tf.constant([-1]))
        losses, _ = CircleLoss(margin, gamma=gamma).score(*core)
        np.testing.assert_allclose(losses, [np.log(2)], rtol=1e-12)


# Margin.

# Every negative is a candidate, near or far.
WIDE = {"margin": 0.9, "cutoff": 0.3, "nonzero_cutoff": 1.99}
DISTANCES = np.sqrt(np.maximum(2 - 2 * SIMILARITIES, 0))


def at_step(step, **settings):
    loss = MarginLoss(**(WIDE | settings))
    loss.iteration = tf.Variable(step, dtype=tf.int64)
    return loss


def test_a_query_of_one_positive_draws_one_of_its_negatives():
    pairs = np.arange(24) // 2
    values = at_step(0, reduction=None)(pairs, ROWS).numpy()
    positive = DISTANCES[np.arange(24), np.arange(24) ^ 1]
    drawn = values - np.maximum(WIDE["margin"] + positive - 1.2, 0)
    terms = np.where(pairs[:, None] != pairs, np.maximum(WIDE["margin"] + 1.2 - DISTANCES, 0), np.inf)
    np.testing.assert_allclose(np.min(np.abs(terms - drawn[:, None]), axis=1), 0, atol=1e-12)
    # Not the nearest of all queries.
    assert len({int(np.argmin(np.abs(row - term))) for row, term in zip(terms, drawn)}) > 5


def test_the_mean_over_the_draws_is_the_expectation():
    """Value and gradient within 4 standard errors, over 2,000 steps."""
    loss, steps = at_step(0), 2000
    draw = tf.function(lambda: value_and_gradient(loss, BALANCED, ROWS))
    draws = []
    for step in range(steps):
        loss.iteration.assign(step)
        value, gradient = draw()
        draws.append(np.append(gradient, value))
    error = np.std(draws, axis=0) / steps**0.5
    value, gradient = value_and_gradient(at_step(0, sampled=False), BALANCED, ROWS)
    assert np.all(np.abs(np.mean(draws, axis=0) - np.append(gradient, value)) < 4 * error)
    # Narrow enough to see the weights: equal ones would give another value.
    equal = np.mean(np.maximum(WIDE["margin"] + 1.2 - DISTANCES, 0), axis=1, where=~SAME)
    far = np.mean(np.maximum(WIDE["margin"] + DISTANCES - 1.2, 0), axis=1, where=POSITIVE_MASK)
    assert abs(np.mean(equal + far) - value) > 40 * error[-1]


def test_draws_are_a_pure_function_of_seed_and_step():
    values = {
        (seed, step): float(at_step(step, seed=seed)(BALANCED, ROWS))
        for seed in (0, 1, 2**62)
        for step in (0, 1, 2**40)
    }
    assert len(set(values.values())) == len(values)
    for (seed, step), value in values.items():
        revived = MarginLoss.from_config(at_step(0, seed=seed).get_config())
        revived.iteration = keras.Variable(step, dtype="int64")
        assert revived(BALANCED, ROWS) == value


def test_without_a_step_draws_go_by_the_labels_of_the_batch():
    loss = MarginLoss(**WIDE)
    value = loss(BALANCED, ROWS)
    assert loss(BALANCED, ROWS) == MarginLoss(**WIDE)(BALANCED.astype("int16"), ROWS) == value
    others = [float(loss(labels, ROWS)) for labels in (BALANCED + 1, BALANCED * 7, BALANCED + 2**40)]
    assert len({float(value), *others}) == 4
    # The labels say nothing else: without draws they give the same value.
    expected = [MarginLoss(**WIDE, sampled=False)(labels, ROWS) for labels in (BALANCED, BALANCED * 7)]
    assert expected[0] == expected[1]


def test_without_a_step_draws_go_by_each_label_and_not_by_their_sum():
    loss, others = MarginLoss(**WIDE), np.array([-1, 1, 2, 3, 4, 6])[BALANCED]
    assert np.sum(others) == np.sum(BALANCED)
    assert loss(others, ROWS) != loss(BALANCED, ROWS)


def test_a_variable_below_0_is_refused_as_a_step():
    loss = MarginLoss()
    loss.iteration = tf.Variable(-1)
    with pytest.raises(InputError, match=r"`iteration`. Expected an integer of at least 0.*iteration=-1"):
        loss(BALANCED, ROWS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="iteration: expected an integer of at least 0"):
        tf.function(loss)(BALANCED, ROWS)


@pytest.mark.parametrize("sampled", [True, False])
def test_without_a_negative_within_the_cutoff_only_positives_have_a_loss(sampled):
    """Negatives at the distance of the root of 2, or opposite, where 1 / q is infinite."""
    rows, labels = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 2], [0, 0, -3]]), [0, 0, 1, 1]
    apart = [0.2 + 2**0.5 - 1.2] * 2 + [0.2 + 2 - 1.2] * 2
    values = losses_by_query(MarginLoss(sampled=sampled, reduction=None), labels, rows)
    np.testing.assert_allclose(values, apart, rtol=1e-12)
    opposite = [[1.0, 0, 0], [1, 0, 0], [-1, 0, 0], [-1, 0, 0]]
    loss = MarginLoss(margin=1.0, nonzero_cutoff=3.0, sampled=sampled, reduction=None)
    value, gradient = value_and_gradient(loss, labels, tf.constant(opposite))
    assert np.all(value == 0) and np.all(gradient == 0)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 1e-4)])
@pytest.mark.parametrize("sampled", [True, False])
def test_weights_in_512_dimensions_do_not_overflow(sampled, dtype, tolerance):
    """1 / q spans more powers of ten than float32 has."""
    center = np.random.default_rng(1).normal(size=512)
    spread = np.linspace(0.2, 4, 24)[:, None]
    rows = (center + spread * np.random.default_rng(2).normal(size=(24, 512))).astype(dtype)
    pairs = reference.one_batch(BALANCED, rows)
    by_hand, _ = reference.pairs.margin(*pairs, sampled=sampled)
    loss = MarginLoss(sampled=sampled, reduction=None)
    np.testing.assert_allclose(losses_by_query(loss, BALANCED, rows), by_hand, rtol=tolerance)
    assert np.all(np.isfinite(value_and_gradient(loss, BALANCED, rows)[1]))


# Histogram.


def test_loss_nears_the_probability_that_a_negative_is_more_similar_than_a_positive_pair():
    positive, negative = SIMILARITIES[POSITIVE_MASK], SIMILARITIES[~SAME]
    probability = np.mean(negative[:, None] > positive)
    np.testing.assert_allclose(HistogramLoss(20001)(BALANCED, ROWS), probability, atol=1e-4)


@pytest.mark.parametrize(
    "labels, angles, probability",
    [([0, 0, 1, 1], [0, 0, 2, 2], 0), ([0, 0, 1, 1], [0, 0, 1, 3], 0.5), ([0, 1, 0, 1], [0, 0, 2, 2], 1)],
)
def test_similarities_on_the_nodes_give_exactly_the_probability(labels, angles, probability):
    """Of -1, 0 and 1, at multiples of a right angle; a tie counts as a negative before a positive."""
    rows = np.array([[1.0, 0], [0, 2], [-3, 0], [0, -4]])[angles]
    assert HistogramLoss()(labels, rows) == probability


def test_mean_over_queries_is_the_papers_loss_of_all_pairs_where_classes_are_of_one_size():
    h_positive, h_negative = (
        reference.pairs.soft_histogram(SIMILARITIES[pairs], 201) for pairs in (POSITIVE_MASK, ~SAME)
    )
    by_hand = np.sum(h_negative * np.cumsum(h_positive))
    np.testing.assert_allclose(HistogramLoss()(BALANCED, ROWS), by_hand, rtol=1e-12)


def test_the_loss_of_one_query_moves_the_positive_pairs_of_others():
    weights = np.zeros(len(LABELS))
    weights[0] = 1
    rows = embeddings()
    _, gradient = value_and_gradient(HistogramLoss(9), LABELS, rows, weights)
    # Every row is pushed off the query as its negative; positives of other queries pull besides.
    unit = tf.math.l2_normalize(rows, axis=1)
    away = tf.linalg.cross(unit, tf.repeat(unit[:1], len(LABELS), axis=0))
    beside = np.abs(np.sum(gradient * away, axis=1)) > 1e-6
    lone = np.array([list(LABELS).count(label) == 1 for label in LABELS])
    assert np.all(beside[~lone][1:]) and not np.any(beside[lone])


def test_similarities_beyond_1_by_rounding_are_at_the_last_node():
    rows = np.repeat(np.random.default_rng(0).normal(size=(32, 3)), 2, axis=0).astype("float32")
    unit = tf.math.l2_normalize(rows, axis=1)
    assert np.any(tf.matmul(unit, unit, transpose_b=True) > 1)
    labels = np.arange(64) // 2
    by_hand = reference.mean(*reference.pairs.histogram(*reference.one_batch(labels, rows), num_bins=9))
    value, gradient = value_and_gradient(HistogramLoss(9), labels, rows)
    np.testing.assert_allclose(value, by_hand, rtol=1e-4)
    assert np.all(np.isfinite(gradient))
