"""mAP_Q and FastAP beyond the contract of all losses: their identity, class weights, bin edges, memory."""

import json
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import LABELS, embeddings, value_and_gradient
from tfrank.losses import FastAPLoss, QuantizedAPLoss
from tfrank.losses.map_q import quantized_ap_loss


def random_batch(seed):
    """Labels of one to five classes, and rows of which two are equal."""
    rng = np.random.default_rng(seed)
    labels, rows = rng.integers(-2, rng.integers(-1, 4), 12), rng.normal(size=(12, 3))
    rows[7] = rows[3]
    return labels, rows


# FastAP is mAP_Q of one bin more.


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_bins", [1, 2, 3, 10, 25])
def test_fast_ap_is_map_q_of_one_bin_more(num_bins, seed):
    labels, rows = random_batch(seed)
    fast, fast_gradient = value_and_gradient(FastAPLoss(num_bins), labels, rows)
    quantized, quantized_gradient = value_and_gradient(QuantizedAPLoss(num_bins + 1), labels, rows)
    np.testing.assert_allclose(fast, quantized, rtol=1e-12)
    np.testing.assert_allclose(fast_gradient, quantized_gradient, rtol=1e-12, atol=1e-15)
    by_hand = reference.mean(
        *reference.ranking.fast_ap(*reference.one_batch(labels, rows), num_bins=num_bins)
    )
    np.testing.assert_allclose(quantized, by_hand, rtol=1e-12)


# Class weights.

WEIGHTED_BATCHES = {
    "classes of 4, 3, 2, 1 and 1": LABELS,
    "one large class and one pair": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
    "one pair and lone queries": [0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9],
    "one class": [5] * 11,
    "labels about 2^62": 2**62 + np.array(LABELS, "int64"),
    "labels equal in their lower 32 bits": 2**40 * np.array(LABELS, "int64"),
}
every_weighted_batch = pytest.mark.parametrize(
    "labels", WEIGHTED_BATCHES.values(), ids=WEIGHTED_BATCHES.keys()
)


def by_query(labels, rows, sample_weight):
    """(w_q, L_q, whether q is valid) by the oracles."""
    losses, valid = reference.ranking.map_q(*reference.one_batch(labels, rows))
    return sample_weight * reference.class_weights(labels, valid), losses, valid


def class_weighted(labels, rows, sample_weight):
    weights, losses, valid = by_query(labels, rows, sample_weight)
    return reference.mean(losses, valid, weights)


@pytest.mark.parametrize("sample_weight", [None, np.linspace(0, 3, 11)], ids=["unweighted", "weighted"])
@every_weighted_batch
def test_class_weights_divide_a_querys_weight_by_the_valid_queries_of_its_class(labels, sample_weight):
    rows, weight = embeddings(), np.ones(11) if sample_weight is None else sample_weight
    value = QuantizedAPLoss(class_weights=True)(tf.constant(labels), rows, sample_weight)
    np.testing.assert_allclose(value, class_weighted(labels, rows, weight), atol=1e-12)

    values = QuantizedAPLoss(class_weights=True, reduction=None)(tf.constant(labels), rows, sample_weight)
    weights, losses, _ = by_query(labels, rows, weight)
    np.testing.assert_allclose(values, weights * losses, atol=1e-12)


def test_with_class_weights_a_class_weighs_the_same_however_many_queries_it_has():
    """Two classes: the loss is the mean of the two means over classes, and not that over queries."""
    labels, rows = np.array(WEIGHTED_BATCHES["one large class and one pair"]), embeddings()
    losses = QuantizedAPLoss(reduction=None)(labels, rows).numpy()
    value = QuantizedAPLoss(class_weights=True)(labels, rows)
    np.testing.assert_allclose(value, (losses[labels == 0].mean() + losses[labels == 1].mean()) / 2)
    assert abs(value - losses.mean()) > 0.05


def test_class_weights_change_nothing_where_no_query_is_valid():
    result = value_and_gradient(QuantizedAPLoss(class_weights=True), tf.range(11), embeddings())
    assert all(np.all(part == 0) for part in result)


def test_gradient_of_the_class_weighted_loss_is_the_slope_of_the_oracle():
    """Central differences, in float64."""
    step, sample_weight, slopes = 1e-6, np.linspace(0.5, 3, 11), np.zeros((11, 3))
    for place in np.ndindex(slopes.shape):
        moved = np.zeros_like(slopes)
        moved[place] = step
        above = class_weighted(LABELS, embeddings() + moved, sample_weight)
        below = class_weighted(LABELS, embeddings() - moved, sample_weight)
        slopes[place] = (above - below) / (2 * step)
    _, gradient = value_and_gradient(QuantizedAPLoss(class_weights=True), LABELS, embeddings(), sample_weight)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7 * np.abs(slopes).max())


@pytest.mark.parametrize("class_weights", [False, True])
def test_class_weights_survive_a_round_trip_through_json(class_weights):
    loss = QuantizedAPLoss(class_weights=class_weights)
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert revived.get_config()["class_weights"] is class_weights
    assert revived(LABELS, embeddings()) == loss(LABELS, embeddings())


# Bin edges.

# Unit vectors, exact in every dtype, as are their similarities: -1, -0.5, 0, 0.5 and 1.
EXACT_ROWS = np.array(
    [
        *([1, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 0, 0], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 1, 0]),
        *([0.5] * 4, [-0.5] * 4, [0.5, -0.5, 0.5, -0.5], [-0.5, 0.5, 0.5, 0.5]),
    ]
)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"tie_aware": True}, {"include_self": True}], ids=str)
@pytest.mark.parametrize("num_bins", [pytest.param(2, marks=pytest.mark.slow), 3, 5, 9])
def test_similarities_on_a_bin_center_are_in_that_bin_alone(num_bins, options, dtype):
    """With 3 bins, orthogonal and opposite vectors; with 5, and 9 too, all similarities here."""
    for seed in range(5):
        labels = np.random.default_rng(seed).integers(0, 3, len(EXACT_ROWS))
        loss = QuantizedAPLoss(num_bins, reduction=None, **options)
        values, gradient = value_and_gradient(loss, labels, EXACT_ROWS.astype(dtype))
        by_hand, _ = reference.ranking.map_q(
            *reference.one_batch(labels, EXACT_ROWS), num_bins=num_bins, **options
        )
        np.testing.assert_allclose(values, by_hand, rtol=1e-12 if dtype == "float64" else 1e-6, atol=1e-7)
        assert np.all(np.isfinite(gradient))


def value_and_slope(similarity, **options):
    """The loss of one query, and its slope by the similarity to one of two positives."""
    gallery = tf.constant([[similarity], [0.6], [0.8]], tf.float64)
    labels, query = tf.constant([0, 0, 1], tf.int64), tf.ones([1, 1], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(gallery)
        core = (labels[:1], query, labels, gallery, tf.constant([-1]))
        settings = QuantizedAPLoss(5, **options).hyper_parameters
        value, _ = quantized_ap_loss(*core, **settings)
    return float(value[0]), float(tape.gradient(value, gallery)[0, 0])


@pytest.mark.parametrize("minimum", [-1.0, 0.0])
def test_the_slope_at_the_minimum_is_that_above_it(minimum):
    value, slope = value_and_slope(minimum, minimum=minimum)
    above, _ = value_and_slope(minimum + 1e-6, minimum=minimum)
    assert slope == pytest.approx((above - value) / 1e-6, rel=1e-4) and slope != 0


def test_a_similarity_that_rounding_puts_below_minus_1_keeps_its_slope():
    assert value_and_slope(np.nextafter(-1, -2)) == value_and_slope(-1.0)


# Memory.

SIZE, BINS = 64, 20


def largest_tensor(function):
    """The number of entries of the largest tensor in the program that XLA is given."""
    batch = tf.range(SIZE) % 8, tf.ones([SIZE, 4])
    compiled = tf.function(function, jit_compile=True, autograph=False)
    program = compiled.experimental_get_compiler_ir(*batch)(stage="hlo")
    shapes = re.findall(r"\b(?:pred|[a-z]+\d+)\[([\d,]+)\]", program)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.parametrize("tie_aware", [False, True])
def test_no_tensor_has_the_size_of_a_histogram_of_all_pairs(tie_aware):
    """Neither in the loss nor in its gradient: the largest are indices, two for each pair."""
    loss = QuantizedAPLoss(BINS, tie_aware=tie_aware)
    assert largest_tensor(lambda *batch: value_and_gradient(loss, *batch)) <= 2 * SIZE**2


def test_the_search_for_the_largest_tensor_finds_a_histogram_of_all_pairs():
    def histogram(_, rows):
        similarity = tf.matmul(rows, rows, transpose_b=True)
        return tf.reduce_sum(tf.nn.relu(1 - tf.abs(similarity - tf.range(20.0)[:, None, None])), axis=2)

    assert largest_tensor(histogram) == BINS * SIZE**2
