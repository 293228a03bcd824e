import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.losses import value_and_gradient
from tests.losses.core.cores import fresh_functions
from tests.losses.core.test_grid_ranks import LABELS, ROWS, embeddings
from tfrank.losses import blackbox_ap
from tfrank.losses.core.hard_ranks import SortedScores, number_above, sorted_rows

compiled = pytest.mark.parametrize("jit", [True, False])


def scores(number, columns=5):
    """`[rows, number]` with ties."""
    return np.random.default_rng(number).integers(-9, 9, [columns, number]).astype("float32")


@pytest.mark.parametrize("number", [1, 2, 64])
@compiled
def test_a_network_sorts(number, jit):
    values = scores(number).T
    np.testing.assert_array_equal(tf.function(sorted_rows, jit_compile=jit)(values), np.sort(values, axis=0))


@compiled
def test_entries_are_placed_among_the_scores_that_exist(jit):
    some, exists, others = scores(37), scores(37) % 3 > 0, scores(50) / 2

    @tf.function(jit_compile=jit)
    def placed():
        return SortedScores(tf.constant(some), tf.constant(exists)).below(tf.constant(others))

    for place, side in zip(placed(), ("left", "right")):
        wanted = [np.searchsorted(np.sort(s[e]), x, side) for s, e, x in zip(some, exists, others)]
        np.testing.assert_array_equal(place, wanted)


def test_the_number_above_each_place_counts_the_masked():
    places, mask = scores(30).astype("int32") % 6, scores(31)[:, :30] > 0
    wanted = [[np.sum(p[m] > k) for k in range(6)] for p, m in zip(places, mask)]
    np.testing.assert_array_equal(number_above(tf.constant(places), tf.constant(mask), 6), wanted)


@pytest.mark.parametrize("labels", [LABELS, np.arange(ROWS) // 130], ids=["of 400", "of 130"])
def test_a_large_class_has_the_value_and_gradient_of_walks_over_the_positives(monkeypatch, labels):
    """With ties, and with positives that pass others."""
    loss, batch = tfrank.BlackboxAPLoss(interpolation=40.0), embeddings(0.3, "float64")
    value, gradient = value_and_gradient(loss, labels, batch)
    monkeypatch.setattr(blackbox_ap, "FROM_POSITIVES", ROWS)
    with fresh_functions():
        walked, of_walks = value_and_gradient(loss, labels, batch)
    np.testing.assert_allclose(value, walked, rtol=1e-12)
    assert np.any(of_walks)
    np.testing.assert_allclose(gradient, of_walks, atol=1e-12)
