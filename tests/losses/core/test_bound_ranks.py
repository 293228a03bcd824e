import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.cases import slow
from tests.losses import value_and_gradient
from tests.losses.core.cores import eagerly
from tests.losses.core.test_grid_ranks import LABELS, ROWS, embeddings
from tfrank.losses.core.bound_ranks import LEAST_DELTA, BoundRanks
from tfrank.losses.core.grid_ranks import GridRanks
from tfrank.losses.core.rows import score_rows


def sup_ap(*arguments, **options):
    return tfrank.SupAPLoss(*arguments, calibration_weight=0.0, **options)


def hierarchical_ap(levels, **options):
    """With categories of 400 and 112 images, and up to two levels within them."""
    labels = np.arange(ROWS)
    coarse = np.stack([labels // 400, labels // 100, labels // 50][levels - 1 :: -1][:levels], axis=1)
    return tfrank.HierarchicalAPLoss(labels=labels, categories=coarse, **options)


def count_by_loop(s, score, temperature, rho, delta):
    """SupAP's H of one entry and one positive."""
    x = s - score
    if x <= 0:
        return 1 / (1 + np.exp(-x / temperature))
    sigmoid = 1 / (1 + np.exp(-min(x, delta) / temperature))
    return sigmoid + 0.5 + rho * max(x - delta, 0.0)


@pytest.mark.parametrize("temperature, rho, delta", [(0.01, 100.0, 0.05), (0.02, 0.0, 0.08), (0.1, 3.0, 0.7)])
def test_counts_at_each_positive_are_those_of_a_plain_loop(temperature, rho, delta):
    found = []

    def kernel(block, *scalars):
        columns, exists = block.positive_columns(ROWS)
        grid = GridRanks(block, scalars[0], [block.negative_mask], [False])
        ranks = BoundRanks(block, grid, *scalars, block.negative_mask, columns, exists)
        found.append((block.s, block.negative_mask, columns, exists, ranks.counts))
        return 0 * block.s[:, 0], 0 * block.s

    rows = tf.math.l2_normalize(embeddings(0.3, "float32"), axis=1)
    core = tf.constant(LABELS, tf.int64), rows
    with eagerly():
        score_rows(kernel, *core, *core, tf.range(ROWS), temperature, rho, delta)
    s, negative, columns, exists, counts = (part.numpy() for part in found[0])
    for row in range(0, len(s), 100):
        for i in np.flatnonzero(exists[row])[::20]:
            score, others = s[row, columns[row, i]].astype("float64"), s[row, negative[row]].astype("float64")
            wanted = sum(count_by_loop(x, score, temperature, rho, delta) for x in others)
            np.testing.assert_allclose(counts[row, i], wanted, rtol=2e-5)


@pytest.mark.parametrize(
    "loss, spread",
    [
        (sup_ap(), 0.1),
        slow(tfrank.SupAPLoss(0.02, rho=0.0, delta=0.5, include_self=True), 0.3),
        slow(hierarchical_ap(3), 0.1),
    ],
    ids=["defaults", "calibrated, without a line, with the query", "four levels"],
)
def test_large_classes_have_the_value_and_gradient_of_the_exact_loss(loss, spread):
    """With ties. A category of 400 has classes of 3."""
    labels = LABELS
    if isinstance(loss, tfrank.HierarchicalAPLoss):
        labels = np.random.default_rng(2).permutation(ROWS) // 3
    compare(loss, labels, embeddings(spread, "float32"), 1e-6, 2e-5)


@pytest.mark.slow
def test_classes_of_at_most_a_quarter_are_sorted_in_fewer_steps():
    """400 of 2,048."""
    labels = np.concatenate([LABELS, 100 + np.arange(3 * ROWS)])
    rows = np.concatenate([embeddings(0.1, "float32"), np.random.default_rng(3).normal(size=(3 * ROWS, 16))])
    compare(sup_ap(), labels, rows.astype("float32"), 1e-6, 2e-5)


def compare(loss, labels, rows, of_value, of_gradient):
    """With float64, in which losses are exact."""
    value, gradient = value_and_gradient(loss, labels, rows)
    exact, exact_gradient = value_and_gradient(loss, labels, rows.astype("float64"))
    np.testing.assert_allclose(value, exact, rtol=of_value)
    assert np.linalg.norm(gradient.numpy() - exact_gradient) <= of_gradient * np.linalg.norm(exact_gradient)
    return exact


@pytest.mark.slow
def test_a_separated_large_class_has_a_small_loss_that_is_right():
    labels = np.arange(ROWS) // 400 * 400
    centers = np.pad(np.eye(2)[labels // 400], [(0, 0), (0, 14)], constant_values=0.2)
    batch = (centers + 0.05 * np.random.default_rng(0).normal(size=centers.shape)).astype("float32")
    assert 0 < compare(sup_ap(0.03, delta=0.2), labels, batch, 3e-4, 1e-3) < 1e-5


@pytest.mark.parametrize("temperatures, at_once", [(1.01 * LEAST_DELTA, True), (0.99 * LEAST_DELTA, False)])
def test_positives_are_counted_at_once_where_the_series_ends_in_time(monkeypatch, temperatures, at_once):
    loss = sup_ap(0.02, delta=0.02 * temperatures)
    calls, slopes = [], BoundRanks.slopes
    monkeypatch.setattr(BoundRanks, "slopes", lambda *arguments: calls.append(1) or slopes(*arguments))
    with eagerly():
        value_and_gradient(loss, LABELS, embeddings(0.3, "float32"))
    assert bool(calls) == at_once
