import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.cases import slow
from tests.losses import value_and_gradient
from tfrank.losses.core import grid_ranks
from tfrank.losses.core.grid_ranks import LEAST_TEMPERATURE, Grid
from tfrank.losses.core.rows import score_rows

# A class of 400, which pays on a gallery of 512, and 28 classes of 4.
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(29), [400, *[4] * 28]))
ROWS = len(LABELS)


def embeddings(spread, dtype):
    """`[512, 16]`: classes around centres that are `spread` apart, equal rows, opposite rows, and a zero."""
    random = np.random.default_rng(1)
    rows = spread * random.normal(size=(29, 16))[LABELS] + random.normal(size=(ROWS, 16))
    rows[10:14], rows[20:24], rows[30] = rows[0], -rows[0], 0
    return rows.astype("float32").astype(dtype)


def counted(similarities, temperature):
    """Counts and slopes at each entry of a row by plain NumPy."""
    value = 1 / (1 + np.exp(-(similarities - similarities[:, None]) / temperature))
    return value.sum(axis=1), (value * (1 - value)).sum(axis=1) / temperature


@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 0.01, 0.03, 0.5])
@pytest.mark.parametrize("where", ["anywhere", "together", "at the ends"])
def test_the_error_of_counts_is_within_its_bound(temperature, where):
    """In float64, which leaves the error of the grid itself."""
    random = np.random.default_rng(0)
    low, high = {"anywhere": (-1, 1), "together": (0.2, 0.25), "at the ends": (1, 1)}[where]
    s = random.uniform(low, high, 300) * (random.choice([-1, 1], 300) if where == "at the ends" else 1)
    grid = Grid(tf.constant(s[None]), tf.constant(temperature, tf.float64))
    shares = grid.spread(tf.ones([1, 300], tf.float64))
    counts, slopes = (grid.read(table)[0].numpy() for table in (grid.counts(shares), grid.slopes(shares)))
    wanted_counts, wanted_slopes = counted(s, temperature)
    assert np.all(np.abs(counts - wanted_counts) <= 7e-6 * wanted_counts + 2e-11 * 300)
    assert np.all(np.abs(slopes - wanted_slopes) <= 2e-5 * wanted_counts / temperature)


@pytest.mark.parametrize(
    "loss, spread",
    [
        (tfrank.SmoothAPLoss(include_self=True), 0.1),
        slow(tfrank.SmoothAPLoss(include_self=True), 1.0),
        *(slow(tfrank.PNPLoss(variant), 1.0) for variant in ("ib", "dq")),
        slow(tfrank.PNPLoss("ds", temperature=0.2, include_self=True), 1.0),
        slow(tfrank.SmoothAPLoss(), 1.0),
        slow(tfrank.SmoothAPLoss(0.1), 0.1),
        (tfrank.RecallAtKLoss(), 0.1),
        slow(tfrank.RecallAtKLoss([1, 100], k_temperatures=[2, 50], count_query=True), 1.0),
        slow(tfrank.RecallAtKLoss([1, 100], k_temperatures=[2, 50], temperature=0.2), 1.0),
    ],
    ids=repr,
)
def test_a_large_class_has_the_value_and_gradient_of_the_exact_loss(loss, spread):
    """In float64 losses are exact."""
    value, gradient = value_and_gradient(loss, LABELS, embeddings(spread, "float32"))
    exact, exact_gradient = value_and_gradient(loss, LABELS, embeddings(spread, "float64"))
    np.testing.assert_allclose(value, exact, rtol=1e-6)
    assert np.linalg.norm(gradient.numpy() - exact_gradient) <= 2e-5 * np.linalg.norm(exact_gradient)


@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 0.012, 0.03])
@pytest.mark.parametrize("below", [True, False])
def test_counts_and_slopes_of_entries_far_away_are_right_relative_to_themselves(temperature, below):
    """All entries are 0.3 to 0.5 below, or above, the scores that count them: up to 50 temperatures."""
    random = np.random.default_rng(0)
    entries, scores = random.uniform(-0.1, 0.1, 200), random.uniform(0.3, 0.4, 100) * (1 if below else -1)
    s = np.concatenate([entries, scores]).astype("float32")
    grid = Grid(tf.constant(s[None]), tf.constant(temperature))
    shares = grid.spread(tf.constant(np.arange(300) < 200, tf.float32)[None])
    x = (s[:200] - s[200:, None].astype("float64")) / temperature
    value, slope = 1 / (1 + np.exp(-x)), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2 / temperature
    for table, wanted in ((grid.counts(shares), value), (grid.slopes(shares), slope)):
        np.testing.assert_allclose(grid.read(table)[0, 200:], wanted.sum(axis=1), rtol=3e-5)


@pytest.mark.parametrize("entries", [65, 4031])
def test_many_equal_entries_have_the_documented_error_in_float32(entries):
    s = tf.fill([1, entries], 0.1234567)
    grid = Grid(s, tf.constant(0.5))
    counts = grid.read(grid.counts(grid.spread(tf.ones_like(s))))
    np.testing.assert_allclose(counts, np.full([1, entries], entries / 2), rtol=1.4e-5)


@pytest.mark.parametrize(
    "loss",
    [
        tfrank.PNPLoss("ib", temperature=0.03),
        *(slow(loss) for loss in (tfrank.SmoothAPLoss(), tfrank.PNPLoss(), tfrank.PNPLoss("o"))),
        tfrank.RecallAtKLoss([500], k_temperatures=[4.0]),
    ],
    ids=repr,
)
def test_a_separated_large_class_has_a_small_loss_that_is_right(loss):
    centers = np.pad(np.eye(29)[LABELS], [(0, 0), (0, 1)], constant_values=1.2)
    batch = (centers + 0.05 * np.random.default_rng(0).normal(size=centers.shape)).astype("float32")
    value, gradient = value_and_gradient(loss, LABELS, batch)
    exact, exact_gradient = value_and_gradient(loss, LABELS, batch.astype("float64"))
    assert 0 < exact < 1e-5
    np.testing.assert_allclose(value, exact, rtol=3e-4)
    assert np.linalg.norm(gradient.numpy() - exact_gradient) <= 1e-3 * np.linalg.norm(exact_gradient)


@pytest.mark.parametrize(
    "labels, dtype, temperature, on_grid",
    [
        (LABELS, "float32", LEAST_TEMPERATURE, True),
        (LABELS, "float32", 0.99 * LEAST_TEMPERATURE, False),
        (LABELS, "float64", 0.1, False),
        slow(np.arange(ROWS) // 337, "float32", 0.1, False),
        slow(np.arange(ROWS) // 338, "float32", 0.1, True),
    ],
)
def test_the_grid_is_for_large_classes_in_float32_at_usual_temperatures(
    monkeypatch, labels, dtype, temperature, on_grid
):
    def unlike_any_loss(block, *_):
        return -tf.ones_like(block.s[:, 0]), tf.zeros_like(block.s)

    def kernel(block, temperature):
        return grid_ranks.sigmoid_kernel(tf.math.log1p, temperature, positives=False)(block)

    monkeypatch.setattr(grid_ranks, "_on_grid", unlike_any_loss)
    rows = tf.math.l2_normalize(embeddings(0.1, dtype), axis=1)
    core = tf.constant(labels, tf.int64), rows
    losses, _ = score_rows(kernel, *core, *core, tf.range(ROWS), temperature)
    assert np.all((losses.numpy() == -1) == on_grid)


def test_absent_rows_are_as_if_they_were_not_in_the_gallery():
    """Copies of the queries with labels of their own: the nearest negatives that there can be."""

    def kernel(block, temperature):
        return grid_ranks.sigmoid_kernel(tf.math.log1p, temperature, positives=False)(block)

    rows = tf.math.l2_normalize(embeddings(1.0, "float32"), axis=1)
    labels, gallery = tf.constant(LABELS, tf.int64), tf.concat([rows, rows[:64]], axis=0)
    gallery_labels = tf.concat([labels, -1 - tf.range(64, dtype=tf.int64)], axis=0)
    own, present = tf.range(ROWS), tf.range(ROWS + 64) < ROWS
    masked, _ = score_rows(kernel, labels, rows, gallery_labels, gallery, own, 0.01, present=present)
    without, _ = score_rows(kernel, labels, rows, labels, rows, own, 0.01)
    np.testing.assert_allclose(masked, without, rtol=1e-5)
