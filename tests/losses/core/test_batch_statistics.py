"""Statistics of a batch, against plain loops over its pairs."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import unit
from tfrank import MultiSimilarityLoss, PNPLoss, SmoothAPLoss, metrics
from tfrank.losses.core.batch_statistics import BINS, MOST_QUERIES, batch_statistics, loss_slope
from tfrank.training.trainer import FLAT_SLOPE

AXES = np.eye(4)


def random_batch(size, classes, seed):
    random = np.random.default_rng(seed)
    return random.integers(0, classes, size), random.normal(size=(size, 3)) * random.uniform(
        0.1, 9, (size, 1)
    )


def axes_batch(seed):
    """Embeddings on axes, of either sign: similarities are 1, 0 and -1, and so full of ties."""
    random = np.random.default_rng(seed)
    rows = AXES[random.integers(0, 4, 20)] * random.choice([-1, 1], (20, 1))
    return random.integers(0, 8, 20), rows


BATCHES = {
    "random": random_batch(30, 8, 0),
    "with lone queries": random_batch(16, 14, 1),
    "ties": axes_batch(2),
    "more ties": axes_batch(3),
    "one class": random_batch(9, 1, 4),
    "all alone": (np.arange(7), random_batch(7, 1, 5)[1]),
    "two images": (np.array([3, 3]), np.array([[1.0, 2.0], [2.0, 1.5]])),
    "zero rows": (np.array([0, 0, 1, 1, 2, 1]), np.vstack([np.zeros([2, 4]), AXES[:2], 1e-9 * AXES[:2]])),
    "one point": (np.array([0, 0, 1, 1]), np.tile(AXES[0], [4, 1])),
}
every_batch = pytest.mark.parametrize("labels, embeddings", BATCHES.values(), ids=BATCHES)


def by_hand(labels, embeddings, queries=None):
    """The statistics over the pairs (q, j) of queries and other images, one after another."""
    rows, size = unit(embeddings), len(labels)
    queries = range(size) if queries is None else queries
    hits, valid, of_positives, of_negatives = 0, 0, [], []
    for q in queries:
        similarity = [math.fsum(a * b for a, b in zip(rows[q], rows[j])) for j in range(size)]
        positives = [similarity[j] for j in range(size) if labels[j] == labels[q] and j != q]
        negatives = [similarity[j] for j in range(size) if labels[j] != labels[q]]
        valid += bool(positives)
        # Pessimistic: of a tie between positive and negative, the negative comes first.
        hits += bool(positives) and all(max(positives) > s for s in negatives)
        of_positives += positives
        of_negatives += negatives
    centre = rows.mean(axis=0)
    return {
        "batch_recall_at_1": hits / valid if valid else 0,
        "valid_queries": valid / len(queries),
        "positive_pair_similarity": np.mean(of_positives) if of_positives else 0,
        "negative_pair_similarity": np.mean(of_negatives) if of_negatives else 0,
        "spread": math.sqrt(np.mean([((row - centre) ** 2).sum() for row in rows])),
        "positive_histogram": bins(of_positives),
        "negative_histogram": bins(of_negatives),
    }


def bins(similarities):
    counts = [0] * 40
    for s in similarities:
        # The last bin has its upper end, too. Rounding may pass an end by a little.
        counts[min(39, max(0, math.floor((s + 1) * 20 + 1e-12)))] += 1
    return counts


def assert_statistics(statistics, wanted):
    assert statistics.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(statistics[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


@every_batch
def test_statistics_are_those_of_plain_loops(labels, embeddings):
    assert_statistics(batch_statistics(labels, embeddings), by_hand(labels, embeddings))


@every_batch
def test_statistics_are_those_of_the_metrics_of_fit(labels, embeddings):
    statistics = batch_statistics(labels, embeddings)
    for name, metric in {
        "batch_recall_at_1": metrics.BatchRecallAt1(),
        "valid_queries": metrics.ValidQueries(),
        "spread": metrics.EmbeddingSpread(),
    }.items():
        metric.update_state(labels, embeddings)
        np.testing.assert_allclose(statistics[name], metric.result(), rtol=1e-6, atol=1e-7, err_msg=name)


@every_batch
def test_histograms_hold_every_pair_of_two_images(labels, embeddings):
    statistics = batch_statistics(labels, embeddings)
    pairs = [(i, j) for i in range(len(labels)) for j in range(len(labels)) if i != j]
    positive = sum(int(labels[i] == labels[j]) for i, j in pairs)
    assert int(tf.reduce_sum(statistics["positive_histogram"])) == positive
    assert int(tf.reduce_sum(statistics["negative_histogram"])) == len(pairs) - positive
    assert len(statistics["positive_histogram"]) == BINS == 40


@pytest.mark.parametrize("size", [1024, 1025, 2048, 2500])
def test_a_large_batch_is_compared_by_at_most_1024_queries(size):
    labels, embeddings = random_batch(size, size // 2, 0)
    valid = float(batch_statistics(labels, embeddings)["valid_queries"])
    stride = {1024: 1, 1025: 2, 2048: 2, 2500: 3}[size]
    queries = range(0, size, stride)
    assert len(queries) <= MOST_QUERIES == 1024
    assert valid == pytest.approx(np.mean([(labels == labels[q]).sum() > 1 for q in queries]), abs=1e-6)


def test_the_queries_of_a_large_batch_meet_all_of_its_images():
    """The second image of each class is no query, but the nearest of the first."""
    labels = np.arange(1200) // 2
    embeddings = np.random.default_rng(0).normal(size=(1200, 12))
    embeddings[1::2] = embeddings[::2] + 1e-3
    statistics = batch_statistics(labels, embeddings)
    assert float(statistics["batch_recall_at_1"]) == 1
    assert int(tf.reduce_sum(statistics["positive_histogram"])) == 600
    assert int(tf.reduce_sum(statistics["negative_histogram"])) == 600 * 1198
    similarity = unit(embeddings)[::2] @ unit(embeddings).T
    negatives = labels[::2, None] != labels
    np.testing.assert_allclose(
        statistics["negative_pair_similarity"], similarity[negatives].mean(), atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("column", [False, True])
def test_labels_may_be_a_column_of_any_integers(dtype, column):
    labels, embeddings = BATCHES["random"]
    given = labels.astype(dtype)[:, None] if column else labels.astype(dtype)
    assert_statistics(batch_statistics(tf.constant(given), embeddings), by_hand(labels, embeddings))


def test_large_labels_are_compared_as_integers():
    labels, embeddings = BATCHES["random"]
    assert_statistics(batch_statistics(labels + 2**62, embeddings), by_hand(labels, embeddings))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_embeddings_may_be_of_any_precision(dtype):
    """Axes are exact in all of them."""
    labels, embeddings = BATCHES["ties"]
    assert_statistics(batch_statistics(labels, tf.cast(embeddings, dtype)), by_hand(labels, embeddings))


def test_statistics_are_one_graph_for_batches_of_any_size():
    function = tf.function(
        batch_statistics,
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3], tf.float64)],
    )
    for name in ("random", "with lone queries", "one class"):
        labels, embeddings = BATCHES[name]
        assert_statistics(function(labels, embeddings), by_hand(labels, embeddings))


def test_a_nan_shows_in_the_means_and_is_in_no_histogram():
    embeddings = np.ones([4, 3])
    embeddings[2] = np.nan
    statistics = batch_statistics([0, 0, 1, 1], embeddings)
    assert math.isnan(statistics["positive_pair_similarity"]) and math.isnan(statistics["spread"])
    assert int(tf.reduce_sum(statistics["positive_histogram"])) == 2


@pytest.mark.parametrize("norms", [1.0, 5.0])
def test_the_slope_is_the_turn_of_embeddings_and_not_of_their_norms(norms):
    labels, embeddings = random_batch(12, 4, 0)
    scaled = tf.constant(norms * embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))
    slope = float(loss_slope(lambda labels, parts: SmoothAPLoss(0.1)(labels, parts[0]), labels, [scaled]))
    total = 0.0
    for i, row in enumerate(scaled.numpy()):
        for axis in range(3):
            moved = [scaled.numpy(), scaled.numpy()]
            moved[0][i, axis] += 1e-6 * norms
            moved[1][i, axis] -= 1e-6 * norms
            up, down = (float(SmoothAPLoss(0.1)(labels, one)) for one in moved)
            total += ((up - down) / 2e-6 / norms) ** 2 * (row @ row)
    assert slope == pytest.approx(math.sqrt(12 * total), rel=1e-5)


def test_pnp_dq_at_a_high_temperature_is_flat_and_multi_similarity_is_not():
    """All similarities near 1, as from random weights: every positive stands behind many negatives."""
    random = np.random.default_rng(0)
    rows = tf.constant(1 + 0.2 * random.normal(size=(64, 32)))
    labels = np.arange(64) // 4

    def slope(loss):
        return float(loss_slope(lambda labels, parts: loss(labels, parts[0]), labels, [rows]))

    assert slope(PNPLoss(temperature=0.1)) < FLAT_SLOPE < slope(MultiSimilarityLoss())
