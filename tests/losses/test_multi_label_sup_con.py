"""The contrastive loss of images with several labels, against plain loops."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses import LABELS, embeddings, value_and_gradient
from tests.programs import printed_json
from tfrank.common.checks import InputError
from tfrank.losses import MultiLabelSupConLoss, SupConLoss

ROWS = embeddings()
TAGS = (np.random.default_rng(0).uniform(size=(len(ROWS), 4)) < 0.4).astype(int)
TAGS[0] = 0  # An image without a label; and a label that one image has alone.
TAGS = np.concatenate([TAGS, np.eye(len(ROWS), 1, -3, int)], axis=1)


def plain(tags, rows, temperature, weights):
    """The sum of w_q L_qc over the labels c of each query, and the number of these labels."""
    sums, counts = [], []
    unit = [row / math.sqrt(sum(x * x for x in row)) for row in rows]
    for q in range(len(unit)):
        others = [j for j in range(len(unit)) if j != q]
        s = {j: float(unit[q] @ unit[j]) / temperature for j in others}
        log_sum = math.log(sum(math.exp(value) for value in s.values()))
        sums.append(0.0), counts.append(0)
        for c in range(tags.shape[1]):
            positives = [j for j in others if tags[j, c]] if tags[q, c] else []
            if positives:
                sums[-1] += weights[q] * sum(log_sum - s[p] for p in positives) / len(positives)
                counts[-1] += 1
    return np.array(sums), np.array(counts)


@pytest.mark.parametrize("weights", [None, np.linspace(0, 2, len(ROWS))], ids=["unweighted", "weighted"])
def test_it_is_the_plain_loops_in_every_reduction(weights):
    w = np.ones(len(ROWS)) if weights is None else weights
    sums, counts = plain(TAGS, ROWS, 0.2, w)
    assert 0 in counts and 2 in counts
    wanted = {
        "mean": sums.sum() / (w * counts).sum(),
        "sum": sums.sum(),
        "sum_over_batch_size": sums.sum() / len(ROWS),
        None: sums,
    }
    for reduction, value in wanted.items():
        loss = MultiLabelSupConLoss(0.2, reduction=reduction)
        np.testing.assert_allclose(loss(TAGS, ROWS, weights), value, rtol=1e-10)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_gradient_is_the_slope_of_the_value(jit_compile):
    loss = MultiLabelSupConLoss(0.2)
    function = tf.function(lambda rows: value_and_gradient(loss, TAGS, rows), jit_compile=jit_compile)
    value, gradient = (part.numpy() for part in function(tf.constant(ROWS)))
    np.testing.assert_allclose(value, loss(TAGS, ROWS), rtol=1e-10)
    for place in np.ndindex(*ROWS.shape):
        step = np.zeros_like(ROWS)
        step[place] = 1e-6
        change = (float(loss(TAGS, ROWS + step)) - float(loss(TAGS, ROWS - step))) / 2e-6
        assert gradient[place] == pytest.approx(change, abs=1e-7)


def test_with_one_label_for_each_image_it_is_sup_con():
    tags = np.equal.outer(LABELS, np.unique(LABELS))
    one = value_and_gradient(MultiLabelSupConLoss(0.3), tags, ROWS)
    other = value_and_gradient(SupConLoss(0.3), LABELS, ROWS)
    for found, wanted in zip(one, other):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [0 * ROWS, np.ones_like(ROWS), ROWS[:1]], ids=["0", "equal", "one"])
def test_degenerate_batches_are_finite(rows):
    value, gradient = value_and_gradient(MultiLabelSupConLoss(0.01), TAGS[: len(rows)], np.float32(rows))
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_fit_pulls_images_of_shared_labels_together_and_a_saved_model_goes_on(tmp_path):
    model = keras.Sequential([keras.Input([ROWS.shape[1]]), keras.layers.Dense(8)])
    model.compile(keras.optimizers.Adam(0.05), MultiLabelSupConLoss(tf.Variable(0.2)))
    history = model.fit(ROWS, TAGS, batch_size=len(ROWS), epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0] - 0.1
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.loss.get_config() == model.loss.get_config()
    assert again.evaluate(ROWS, TAGS, verbose=0) == pytest.approx(model.evaluate(ROWS, TAGS, verbose=0))


@pytest.mark.parametrize(
    "tags, message",
    [
        (LABELS, r"Expected shape \[batch, classes\], 1 for each label"),
        (2 * TAGS, "Expected only 0 and 1. Received: labels=2.0"),
        (np.where(TAGS, np.nan, 0.0), "Expected only 0 and 1"),
    ],
    ids=["one column", "twos", "NaN"],
)
def test_labels_that_are_not_marks_are_refused(tags, message):
    with pytest.raises(InputError, match=message):
        MultiLabelSupConLoss()(tags, ROWS)


@pytest.mark.slow
def test_two_replicas_give_the_value_and_the_gradient_of_one_device():
    found = printed_json("-m", "tests.losses.multi_label_replicas")
    for part in ("value", "gradient"):
        np.testing.assert_allclose(found["two"][part], found["one"][part], rtol=1e-6, atol=1e-9)
