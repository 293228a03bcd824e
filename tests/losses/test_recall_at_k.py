"""Similarity mixup of the Recall@k surrogate, against an oracle on the extended batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.cases import slow
from tests.losses import LABELS, embeddings
from tests.losses import fresh_process as small
from tfrank.common.checks import InputError
from tfrank.losses import RecallAtKLoss

# Few k, so that both sides of min(k, sum) are met; temperatures at which many rows matter.
SETTINGS = {"ks": (1, 3), "k_temperatures": (1.0, 0.5), "temperature": 0.1}
ROWS = len(LABELS)


def simix_loss(step=0, **settings):
    loss = RecallAtKLoss(**(SETTINGS | {"simix": True} | settings))
    loss.iteration = tf.Variable(step, dtype=tf.int64)
    return loss


# The oracle: plain loops over rows that are normalised before they are mixed, and not after.


def extended(labels, rows, step, seed=0, dtype="float64"):
    """Labels and rows of the batch and its virtual rows, and each row's virtual row if it has one."""
    shares = tf.random.stateless_uniform([len(labels)], [seed, step], dtype=dtype).numpy()
    labels, rows, virtual = [int(label) for label in labels], list(reference.unit(rows)), {}
    for i in range(len(shares)):
        members = [j for j, label in enumerate(labels[: len(shares)]) if label == labels[i]]
        if len(members) > 1:
            partner = members[(members.index(i) + 1) % len(members)]
            virtual[i] = len(rows)
            rows.append(shares[i] * rows[i] + (1 - shares[i]) * rows[partner])
            labels.append(labels[i])
    return labels, rows, virtual


def query_loss(label, row, own, gallery_labels, gallery):
    """1 - the mean over k of the smooth recall@k, and whether the query is valid."""
    s = [float(np.dot(row, other)) for other in gallery]
    positives, negatives = reference.candidates(0, [label], gallery_labels, [own])
    if not positives:
        return 0.0, False
    r = [1 + reference.soft_rank(i, positives + negatives, s, SETTINGS["temperature"]) for i in positives]
    recalls = []
    for k, k_temperature in zip(SETTINGS["ks"], SETTINGS["k_temperatures"]):
        found = sum(reference.sigmoid((k - r_i) / k_temperature) for r_i in r)
        recalls.append(min(found, k) / min(k, len(positives)))
    return 1 - sum(recalls) / len(recalls), True


def oracle(labels, rows, step=0, seed=0, dtype="float64"):
    """(the mean of each row's loss and of its virtual row's, which rows are valid)"""
    all_labels, all_rows, virtual = extended(labels, rows, step, seed, dtype)
    scored = [query_loss(all_labels[i], all_rows[i], i, all_labels, all_rows) for i in range(len(all_rows))]
    losses = [scored[i][0] for i in range(len(labels))]
    for i, place in virtual.items():
        losses[i] = (losses[i] + scored[place][0]) / 2
    return np.array(losses), np.array([valid for _, valid in scored[: len(labels)]])


BATCHES = {
    "classes of 4, 3, 2, 1 and 1": LABELS,
    "one class": [5] * ROWS,
    "pairs and a lone row": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5],
    "labels about -2^62": -(2**62) + LABELS,
}


@pytest.mark.parametrize("seed, step", [(0, 0), (0, 7), (3, 7), (2**40, 2**40)])
@pytest.mark.parametrize("labels", BATCHES.values(), ids=BATCHES)
def test_loss_of_a_row_is_the_mean_of_its_own_and_its_virtual_rows(labels, seed, step):
    rows, labels = embeddings(), tf.constant(labels, tf.int64)
    losses, valid = oracle(labels.numpy(), rows, step, seed)
    values = simix_loss(step, seed=seed, reduction=None)(labels, rows)
    np.testing.assert_allclose(values, losses, rtol=1e-10, atol=1e-12)
    value = simix_loss(step, seed=seed)(labels, rows)
    np.testing.assert_allclose(value, reference.mean(losses, valid), rtol=1e-10)
    weights = np.linspace(0, 3, ROWS)
    value = simix_loss(step, seed=seed)(labels, rows, weights)
    np.testing.assert_allclose(value, reference.mean(losses, valid, weights), rtol=1e-10)


def test_virtual_rows_are_a_function_of_seed_and_step():
    def value(**settings):
        return float(simix_loss(**settings)(LABELS, embeddings()))

    assert value(seed=1, step=2) == value(seed=1, step=2)
    values = {value(seed=seed, step=step) for seed in range(3) for step in range(3)}
    assert len(values) == 9
    assert value(simix=False) not in values


@pytest.mark.parametrize("labels", [range(ROWS), [3]], ids=["all lone", "one row"])
def test_batches_without_pairs_give_zero(labels):
    rows = tf.constant(embeddings()[: len(labels)])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = simix_loss()(tf.constant(labels), rows)
    assert value == 0
    assert np.all(tape.gradient(value, rows) == 0)


@pytest.mark.parametrize("labels", [LABELS, *map(slow, list(BATCHES.values())[1:])], ids=BATCHES)
def test_gradient_with_virtual_rows_is_the_slope(labels):
    """By all queries with unequal weights, in float64; the value is the oracle's."""
    loss, weights = simix_loss(step=5), np.linspace(0.5, 3, ROWS)
    results = tf.test.compute_gradient(
        lambda rows: loss(tf.constant(labels), rows, weights), [embeddings()], delta=1e-5
    )
    for got, slopes in zip(*results):
        np.testing.assert_allclose(got, slopes, atol=1e-7 * np.abs(slopes).max())
        assert np.abs(slopes).max() > 0.01


# Queries against a gallery.


def test_queries_from_the_gallery_have_the_loss_they_have_in_the_batch():
    labels, rows = tf.constant(LABELS), tf.constant(reference.unit(embeddings()))
    part = tf.constant([4, 0, 9, 6, 3])
    whole, whole_valid = simix_loss(step=1).score(labels, rows, labels, rows, tf.range(ROWS))
    queries = tf.gather(labels, part), tf.gather(rows, part)
    losses, valid = simix_loss(step=1).score(*queries, labels, rows, part)
    np.testing.assert_allclose(losses, tf.gather(whole, part), rtol=1e-12)
    np.testing.assert_array_equal(valid, tf.gather(whole_valid, part))


def test_queries_from_outside_have_their_own_loss_alone_against_the_extended_gallery():
    """Beside queries from the gallery; labels are of the gallery, of a lone row, and of no row."""
    rows = reference.unit(embeddings())
    outside = reference.unit(embeddings(seed=1))[:4]
    queries = np.concatenate([outside, rows[:2]])
    query_labels, own = np.array([3, 1, 7, 100, *LABELS[:2]]), [-1, -1, -1, -1, 0, 1]
    gallery = extended(LABELS, rows, step=1)[:2]
    by_hand = [query_loss(label, row, -1, *gallery) for label, row in zip(query_labels, outside)]
    inside, _ = oracle(LABELS, rows, step=1)

    losses, valid = simix_loss(step=1).score(*map(tf.constant, (query_labels, queries, LABELS, rows, own)))
    np.testing.assert_allclose(losses, [loss for loss, _ in by_hand] + [*inside[:2]], rtol=1e-10)
    assert valid.numpy().tolist() == [True, True, True, False, True, True]


# Training.


def simix_model():
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    model.compile(keras.optimizers.Adam(0.01), RecallAtKLoss(**SETTINGS, simix=True))
    return model


def test_every_step_of_fit_has_virtual_rows_of_its_own():
    model, values, by_hand = simix_model(), [], []
    model.loss.iteration = model.optimizer.iterations
    for step in range(3):
        rows = small.FEATURES @ model.get_weights()[0]
        by_hand.append(reference.mean(*oracle(small.LABELS, rows, step, dtype="float32")))
        values.append(small.train_one_step(model))
    np.testing.assert_allclose(values, by_hand, rtol=1e-5)


def test_virtual_rows_without_an_iteration_are_refused():
    with pytest.raises(InputError, match=r"'recall_at_k' changes .* Set loss\.iteration = optimizer\.iter"):
        RecallAtKLoss(**SETTINGS, simix=True)(small.LABELS, small.FEATURES)
