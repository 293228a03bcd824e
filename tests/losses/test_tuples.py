"""Losses of pairs, triplets and tuples beyond the contract of all: printed formulas, and what is mined."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.losses import LABELS, embeddings, value_and_gradient
from tfrank.losses import ContrastiveLoss, LiftedStructureLoss, NPairsLoss, TripletLoss
from tfrank.losses.contrastive import contrastive_loss
from tfrank.losses.core.pairs import pair_masks
from tfrank.losses.lifted_structure import lifted_structure_loss
from tfrank.losses.n_pairs import n_pairs_loss
from tfrank.losses.triplet import triplet_loss

BALANCED = np.repeat(np.arange(4), 3)
ROWS = np.random.default_rng(0).normal(size=(12, 3))
UNIT_ROWS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
EVERYONE = range(12)


def core(labels, rows):
    """A batch as its own gallery, in tensors."""
    labels, rows = tf.constant(labels, tf.int64), tf.constant(rows)
    return labels, rows, labels, rows, tf.range(tf.size(labels))


def outside(query_labels, queries, gallery_labels, gallery):
    """Queries that are not in the gallery, in tensors."""
    nowhere = tf.fill([len(query_labels)], -1)
    labels = (tf.constant(labels, tf.int64) for labels in (query_labels, gallery_labels))
    return next(labels), tf.constant(queries), next(labels), tf.constant(gallery), nowhere


def test_masks_of_pairs_leave_out_the_own_row_and_only_that():
    positives, negatives = pair_masks(tf.constant([3, 3, 1]), tf.constant([3, 1, 3]), tf.constant([2, -1, 1]))
    assert positives.numpy().tolist() == [[True, False, False], [True, False, True], [False, False, False]]
    assert negatives.numpy().tolist() == [[False, True, False], [False, True, False], [True, False, True]]


# Triplets.


def on_a_circle(squared_distances):
    """Unit rows, `[rows, 2]` float64, at those squared distances of the first row, which is added."""
    angles = [0, *(math.acos(1 - d2 / 2) for d2 in squared_distances)]
    return np.array([[math.cos(angle), math.sin(angle)] for angle in angles])


# Settings, squared distances of the positives and of the negatives, and the loss of the first row.
MINED = {
    "semi-hard: the nearest beyond": ("semi_hard", [1.0], [0.9, 1.1, 1.15], 0.1),
    "semi-hard: none within the margin": ("semi_hard", [1.0], [0.9, 1.3], 0.0),
    "semi-hard: none beyond, the farthest": ("semi_hard", [1.0], [0.1, 0.7], 0.5),
    "semi-hard: each positive its own": ("semi_hard", [1.0, 2.0], [1.1, 2.05, 0.1], (0.1 + 0.15) / 2),
    "hard: farthest and nearest": ("hard", [0.4, 1.0], [0.3, 0.5, 1.1], 0.9),
    "hard: apart": ("hard", [0.4, 1.0], [1.3, 1.5], 0.0),
    "all": ("all", [0.4, 1.0], [0.5, 1.1, 3.0], (0.1 + 0 + 0 + 0.7 + 0.1 + 0) / 6),
}


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("mining, positives, negatives, by_hand", MINED.values(), ids=MINED)
def test_triplets_are_those_of_their_mining(mining, positives, negatives, by_hand, dtype, tolerance):
    rows = on_a_circle(positives + negatives).astype(dtype)
    labels = [0] * (1 + len(positives)) + [1] * len(negatives)
    values = TripletLoss(0.2, mining=mining, reduction=None)(labels, rows)
    np.testing.assert_allclose(values[0], by_hand, rtol=tolerance, atol=tolerance)


def test_a_negative_as_far_as_the_positive_is_not_beyond_it():
    rows = np.eye(4)[[0, 1, 2, 3]]
    rows[3] = [-1, 0, 0, 0]
    values = TripletLoss(3.0, reduction=None)([0, 0, 1, 1], rows)
    np.testing.assert_allclose(values[0], 2 + 3 - 4, rtol=1e-12)


def test_mean_of_all_triplets_is_that_of_eq_1():
    terms = [
        max(sum((UNIT_ROWS[i] - UNIT_ROWS[j]) ** 2) + 0.2 - sum((UNIT_ROWS[i] - UNIT_ROWS[k]) ** 2), 0)
        for i in EVERYONE
        for j in EVERYONE
        for k in EVERYONE
        if i != j and BALANCED[i] == BALANCED[j] and BALANCED[i] != BALANCED[k]
    ]
    value = TripletLoss(mining="all")(BALANCED, ROWS)
    np.testing.assert_allclose(value, sum(terms) / len(terms), rtol=1e-12)


@pytest.mark.parametrize("mining", ["semi_hard", "hard", "all"])
def test_rows_at_the_same_distance_share_the_gradient_equally(mining):
    """Of two equal positives, and of three equal negatives."""
    rows = tf.constant(on_a_circle([1.0, 1.0, 0.9, 0.9, 0.9]))
    query, gallery = rows[:1], rows[1:]
    labels = tf.constant([0, 0, 1, 1, 1], tf.int64)
    with tf.GradientTape() as tape:
        tape.watch(gallery)
        settings = TripletLoss(mining=mining).hyper_parameters
        losses, _ = triplet_loss(labels[:1], query, labels, gallery, tf.constant([-1]), **settings)
    np.testing.assert_allclose(losses, [0.3], rtol=1e-12)
    # dd^2/dx = -2 q
    shares = np.array([1 / 2, 1 / 2, -1 / 3, -1 / 3, -1 / 3])
    np.testing.assert_allclose(tape.gradient(losses, gallery), np.outer(shares, -2 * query[0]), rtol=1e-12)


@pytest.mark.parametrize("hardest", [0, 2])
@pytest.mark.parametrize("mining", ["semi_hard", "hard", "all"])
def test_a_query_without_a_negative_has_no_triplet_and_is_not_valid(mining, hardest):
    """However large the margin; the second query has negatives, but no positive."""
    pairs = outside([5, 6, 5], UNIT_ROWS[:3], [5, 5], UNIT_ROWS[3:5])
    with tf.GradientTape() as tape:
        tape.watch([pairs[1], pairs[3]])
        losses, valid = TripletLoss(10.0, mining=mining, hardest=hardest).score(*pairs)
    assert not np.any(losses) and not np.any(valid)
    assert not any(np.any(gradient) for gradient in tape.gradient(losses, [pairs[1], pairs[3]]))
    beside = outside([5, 6, 5], UNIT_ROWS[:3], [5, 5, 6], UNIT_ROWS[3:6])
    losses, valid = TripletLoss(10.0, mining=mining, hardest=hardest).score(*beside)
    # All three count, or the two of the largest losses.
    assert valid.numpy().sum() == (hardest or 3) and np.all((losses > 0) == valid)


# The hardest queries.


@pytest.mark.parametrize("mining", ["semi_hard", "hard", "all"])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_only_the_queries_of_the_largest_losses_count(mining, number):
    rows = embeddings()
    settings = {"margin": 1.0, "mining": mining}
    of_all = TripletLoss(**settings, reduction=None)(LABELS, rows).numpy()
    largest = np.sort(of_all)[::-1][:number]
    loss = TripletLoss(**settings, hardest=number)
    np.testing.assert_allclose(loss(LABELS, rows), largest.mean(), rtol=1e-12)
    chosen = of_all >= largest[-1]
    assert chosen.sum() == number
    # Its gradient is that of the mean of those alone.
    value, gradient = value_and_gradient(loss, LABELS, rows)
    wanted = value_and_gradient(TripletLoss(**settings), LABELS, rows, chosen.astype(float))
    np.testing.assert_allclose(gradient, wanted[1], atol=1e-12)
    np.testing.assert_allclose(value, wanted[0], rtol=1e-12)


def test_of_queries_of_one_loss_the_first_in_the_batch_count():
    """All rows are equal, so that every query's loss is the margin; the first is alone in its class."""
    _, valid = TripletLoss(hardest=3).score(*core([9, 0, 1, 0, 1, 2, 2], np.tile([[1.0, 0.0]], [7, 1])))
    assert valid.numpy().tolist() == [False, True, True, True, False, False, False]


@pytest.mark.parametrize("hardest", [9, 1000])
def test_where_fewer_queries_are_valid_than_the_hardest_all_of_them_count(hardest):
    """Nine of the batch have another row of their class."""
    by_all, by_hardest = (TripletLoss(1.0, hardest=number) for number in (0, hardest))
    rows = embeddings()
    for got, wanted in zip(*(value_and_gradient(loss, LABELS, rows) for loss in (by_hardest, by_all))):
        np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_sample_weights_weigh_the_hardest_queries_and_do_not_choose_them():
    rows, weights = embeddings(), np.linspace(3, 0, len(LABELS))
    of_all = TripletLoss(1.0, mining="hard", reduction=None)(LABELS, rows).numpy()
    chosen = np.argsort(-of_all)[:4]
    value = TripletLoss(1.0, mining="hard", hardest=4)(LABELS, rows, weights)
    np.testing.assert_allclose(value, np.average(of_all[chosen], weights=weights[chosen]), rtol=1e-12)


# Contrastive.


@pytest.mark.parametrize("margin", [0.5, 1.0, 2.5])
def test_contrastive_is_the_mean_over_all_pairs_of_the_batch(margin):
    terms = []
    for i in EVERYONE:
        for j in set(EVERYONE) - {i}:
            d = math.dist(UNIT_ROWS[i], UNIT_ROWS[j])
            terms.append(d**2 if BALANCED[i] == BALANCED[j] else max(margin - d, 0) ** 2)
    np.testing.assert_allclose(ContrastiveLoss(margin)(BALANCED, ROWS), sum(terms) / (12 * 11), rtol=1e-12)


def test_contrastive_gradient_at_distance_0_is_0_for_a_negative():
    pairs = outside([0], [[1.0, 0.0]], [1, 0], [[1.0, 0.0], [0.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(pairs[3])
        losses, valid = contrastive_loss(*pairs, **ContrastiveLoss().hyper_parameters)
    np.testing.assert_allclose(losses, [(1 + 2) / 2], rtol=1e-12)
    # Of the positive d^2 = 2 - 2s, of which it has half.
    np.testing.assert_allclose(tape.gradient(losses, pairs[3]), [[0, 0], [-1, 0]], atol=1e-12)
    assert valid.numpy().all()


# N-pairs.


def test_n_anchors_against_n_positives_are_eq_2():
    rng = np.random.default_rng(3)
    anchors, positives = rng.normal(size=(2, 5, 4))
    by_hand = 0.0
    for i in range(5):
        others = (anchors[i] @ positives[j] - anchors[i] @ positives[i] for j in range(5) if j != i)
        by_hand += math.log(1 + sum(math.exp(difference) for difference in others)) / 5
    losses, valid = n_pairs_loss(*outside(range(5), anchors, range(5), positives))
    np.testing.assert_allclose(tf.reduce_mean(losses), by_hand, rtol=1e-12)
    assert valid.numpy().all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dot_products_of_any_size_do_not_overflow(dtype):
    """Between similarities of +-1e6: the loss is their difference, or next to nothing."""
    query, gallery = np.array([[1e3, 0]], dtype), np.array([[1e3, 0], [-1e3, 0]], dtype)
    for labels, by_hand, slope in ([[0, 1], 0.0, 0.0], [[1, 0], 2e6, 1e3]):
        pairs = outside([0], query, labels, gallery)
        with tf.GradientTape() as tape:
            tape.watch(pairs[3])
            losses, _ = n_pairs_loss(*pairs)
        np.testing.assert_allclose(losses, [by_hand], rtol=1e-6)
        np.testing.assert_allclose(tape.gradient(losses, pairs[3]), [[slope, 0], [-slope, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "loss, core", [(NPairsLoss(), n_pairs_loss), (LiftedStructureLoss(), lifted_structure_loss)]
)
def test_pairs_without_negatives_count_with_0(loss, core):
    pairs = outside([5, 5], ROWS[:2], [5, 5, 5], ROWS[2:5])
    with tf.GradientTape() as tape:
        tape.watch([pairs[1], pairs[3]])
        losses, valid = core(*pairs, **loss.hyper_parameters)
    assert not np.any(losses) and np.all(valid)
    assert not any(np.any(gradient) for gradient in tape.gradient(losses, [pairs[1], pairs[3]]))


@pytest.mark.parametrize("loss", [NPairsLoss, LiftedStructureLoss])
def test_norms_matter_unless_they_are_taken_out(loss):
    assert not loss().normalize and loss(normalize=True).normalize
    by_rows, by_unit_rows, by_larger_rows = (loss()(BALANCED, rows) for rows in (ROWS, UNIT_ROWS, 2 * ROWS))
    assert len({round(float(value), 3) for value in (by_rows, by_unit_rows, by_larger_rows)}) == 3
    np.testing.assert_allclose(loss(normalize=True)(BALANCED, ROWS), by_unit_rows, rtol=1e-12)


# Lifted structure.


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_lifted_structure_of_a_balanced_batch_is_eq_3(margin, squared):
    d = [[math.dist(x, y) for y in ROWS] for x in ROWS]
    pairs = [(i, j) for i in EVERYONE for j in EVERYONE]
    P = [(i, j) for i, j in pairs if i != j and BALANCED[i] == BALANCED[j]]
    N = [(i, j) for i, j in pairs if BALANCED[i] != BALANCED[j]]
    total = 0.0
    for i, j in P:
        pushes = [math.exp(margin - d[i][k]) for a, k in N if a == i]
        pushes += [math.exp(margin - d[j][k]) for a, k in N if a == j]
        total += max(d[i][j] + math.log(sum(pushes)), 0) ** (2 if squared else 1)
    value = LiftedStructureLoss(margin, squared=squared)(BALANCED, ROWS)
    np.testing.assert_allclose(value, total / (2 * len(P)), rtol=1e-12)


def test_a_pair_of_which_one_row_has_negatives_has_the_loss_of_those():
    """The first query has no negative, and its positive is the second query's, at distance 4."""
    pairs = outside([0, 1], [[0.0, 0.0], [3.0, 4.0]], [0], [[3.0, 0.0]])
    settings = LiftedStructureLoss(3.0).hyper_parameters
    losses, valid = lifted_structure_loss(*pairs, **settings)
    np.testing.assert_allclose(losses, [(3 + (3 - 4)) / 2, 0], rtol=1e-12)
    assert valid.numpy().tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_rows_neither_overflow_nor_vanish(dtype):
    """Exponents of -1e6 and less: J is the pair's distance and the margin less the nearest negative's."""
    rows = np.array([[0, 0], [0, 3e6], [1e6, 0], [8e6, 8e6]], dtype)
    values, gradient = value_and_gradient(LiftedStructureLoss(reduction=None), [0, 0, 1, 2], rows)
    np.testing.assert_allclose(values, [(3e6 + 1 - 1e6) / 2] * 2 + [0, 0], rtol=1e-6)
    # The pair is pulled together by each of its queries, and the first row is pushed from the third.
    np.testing.assert_allclose(gradient, [[1, -1], [0, 1], [-1, 0], [0, 0]], rtol=1e-5, atol=1e-5)


def test_gradient_at_distance_0_is_0_and_negatives_of_both_rows_have_their_part():
    """All rows of a class are equal, so that A_i = A_j."""
    rows = np.array([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    value, gradient = value_and_gradient(LiftedStructureLoss(3.0), [0, 0, 1, 1], rows, [1, 0, 0, 0])
    np.testing.assert_allclose(value, (3 - 2 + math.log(4)) / 2, rtol=1e-12)
    # Of the one query's pair each row has half of the pushes, and there is no way to pull.
    by_hand = [[0.25, 0], [0.25, 0], [-0.25, 0], [-0.25, 0]]
    np.testing.assert_allclose(gradient, by_hand, atol=1e-12)


@pytest.mark.parametrize("hardest", [100, 2**31, 2**62])
def test_hardest_may_be_more_than_the_batch(hardest):
    rows = embeddings()
    assert TripletLoss(hardest=hardest)(LABELS, rows) == TripletLoss()(LABELS, rows) > 0
